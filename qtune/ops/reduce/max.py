"""max: the three functions that torch calls so, made of amax, argmax and maximum."""

from __future__ import annotations

import torch

from qtune.ops.reduce.extreme import extreme
from qtune.ops.registry import register

register(
    extreme(
        "max",
        "Max",
        torch.max,
        doc="largest value, with its index where a dim is given; or the larger of two tensors",
    )
)
