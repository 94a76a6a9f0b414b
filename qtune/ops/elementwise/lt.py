"""lt: ``input < other``; a mask without scale."""

from __future__ import annotations

import operator

import numpy as np
import torch

from qtune.ops.elementwise.binding import binary
from qtune.ops.elementwise.comparison import Comparison, comparison
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, MethodTarget

register(
    comparison(
        "lt",
        Comparison("Less", torch.lt, np.less),
        (
            FunctionTarget(torch.lt, binary),
            FunctionTarget(torch.less, binary),
            FunctionTarget(operator.lt, binary),
            MethodTarget("lt", binary),
            MethodTarget("less", binary),
            MethodTarget("__lt__", binary),
        ),
        doc="input < other",
    )
)
