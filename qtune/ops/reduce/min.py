"""min: the three functions that torch calls so, made of amin, argmin and minimum."""

from __future__ import annotations

import torch

from qtune.ops.reduce.extreme import extreme
from qtune.ops.registry import register

register(
    extreme(
        "min",
        "Min",
        torch.min,
        doc="smallest value, with its index where a dim is given; or the smaller of two tensors",
    )
)
