"""softmax: max, sub, exp table, sum, reciprocal table, mul; int16 inside (numerics.md 3)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import qint16
from qtune.ops.reduce.normalizing import exponentials, normalization
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    parts = exponentials(builder, bound)
    inverse = builder.call("reciprocal", (parts.total,), part="reciprocal", forced_dtype=qint16)
    return builder.call("mul", (parts.powers, inverse), part="mul")


register(
    normalization(
        "softmax",
        "Softmax",
        torch.softmax,
        _decompose,
        (F.softmax, torch.softmax, torch.special.softmax),
        {nn.Softmax: None, nn.Softmax2d: -3},
        doc="exp(x) / sum(exp(x)) along a dimension; int16 inside",
    )
)
