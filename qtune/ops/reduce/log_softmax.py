"""log_softmax: max, sub, exp table, sum, log table, sub; int16 inside (numerics.md section 3)."""

from __future__ import annotations

import math
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
    logarithm = builder.call(
        "log", (parts.total,), part="log", forced_dtype=qint16, bounds=(0.0, math.log(parts.length))
    )
    return builder.call("sub", (parts.shifted, logarithm), part="log_softmax")


register(
    normalization(
        "log_softmax",
        "LogSoftmax",
        torch.log_softmax,
        _decompose,
        (F.log_softmax, torch.log_softmax, torch.special.log_softmax),
        {nn.LogSoftmax: None},
        doc="x - log(sum(exp(x))) along a dimension; int16 inside",
    )
)
