"""addmv: ``beta input + alpha mat @ vec``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.gemm.adding import added_product
from qtune.ops.registry import register
from qtune.ops.spec import DecomposeBuilder, Sample


def _product(builder: DecomposeBuilder, left: Any, right: Any) -> Any:
    return builder.call("matmul", (left, right), part="matmul")


def _sample(rng: np.random.Generator) -> Sample:
    rows, inner = (int(v) for v in rng.integers(1, 7, 2))
    return Sample(((rows,), (rows, inner), (inner,)), {"beta": 1, "alpha": 2})


register(
    added_product(
        "addmv",
        torch.addmv,
        ("mat", "vec"),
        _product,
        _sample,
        doc="a matrix times a vector, added to a vector",
    )
)
