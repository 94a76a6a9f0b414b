"""le: ``input <= other``; a mask without scale."""

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
        "le",
        Comparison("LessOrEqual", torch.le, np.less_equal),
        (
            FunctionTarget(torch.le, binary),
            FunctionTarget(torch.less_equal, binary),
            FunctionTarget(operator.le, binary),
            MethodTarget("le", binary),
            MethodTarget("less_equal", binary),
            MethodTarget("__le__", binary),
        ),
        doc="input <= other",
    )
)
