"""addr: ``beta input + alpha outer(vec1, vec2)``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.gemm.adding import added_product
from qtune.ops.registry import register
from qtune.ops.spec import DecomposeBuilder, Sample


def _product(builder: DecomposeBuilder, left: Any, right: Any) -> Any:
    column = builder.call("unsqueeze", (left,), {"dim": -1}, part="column")
    return builder.call("mul", (column, right), part="mul")


def _sample(rng: np.random.Generator) -> Sample:
    rows, columns = (int(v) for v in rng.integers(1, 9, 2))
    return Sample(((rows, columns), (rows,), (columns,)), {"beta": 1, "alpha": 1})


register(
    added_product(
        "addr",
        torch.addr,
        ("vec1", "vec2"),
        _product,
        _sample,
        doc="all products of two vectors, added to a matrix",
    )
)
