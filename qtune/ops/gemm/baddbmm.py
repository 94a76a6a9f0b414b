"""baddbmm: ``beta input + alpha batch1 @ batch2`` for each sample."""

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
    batch, rows, inner, columns = (int(v) for v in rng.integers(1, 7, 4))
    shapes = ((batch, 1, columns), (batch, rows, inner), (batch, inner, columns))
    return Sample(shapes, {"beta": 1, "alpha": 1})


register(
    added_product(
        "baddbmm",
        torch.baddbmm,
        ("batch1", "batch2"),
        _product,
        _sample,
        doc="matrix products per sample, added to a tensor",
    )
)
