"""addmm: ``beta input + alpha mat1 @ mat2``; a linear layer where that is what it computes."""

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
    rows, inner, columns = (int(v) for v in rng.integers(1, 7, 3))
    attrs = {"beta": int(rng.integers(0, 3)), "alpha": 1}
    return Sample(((rows, columns), (rows, inner), (inner, columns)), attrs)


register(
    added_product(
        "addmm",
        torch.addmm,
        ("mat1", "mat2"),
        _product,
        _sample,
        doc="a matrix product added to a matrix or a row",
    )
)
