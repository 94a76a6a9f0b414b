"""addbmm: ``beta input + alpha sum(batch1 @ batch2)`` over the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qtune.ops.gemm.adding import added_product
from qtune.ops.registry import register
from qtune.ops.spec import DecomposeBuilder, Sample


def _product(builder: DecomposeBuilder, left: Any, right: Any) -> Any:
    every = builder.call("matmul", (left, right), part="matmul")
    return builder.call("sum", (every,), {"dim": (0,), "keepdim": False}, part="sum")


def _sample(rng: np.random.Generator) -> Sample:
    batch, rows, inner, columns = (int(v) for v in rng.integers(1, 7, 4))
    shapes = ((rows, columns), (batch, rows, inner), (batch, inner, columns))
    return Sample(shapes, {"beta": 1, "alpha": 1})


register(
    added_product(
        "addbmm",
        torch.addbmm,
        ("batch1", "batch2"),
        _product,
        _sample,
        doc="matrix products summed over the batch, added to a matrix",
    )
)
