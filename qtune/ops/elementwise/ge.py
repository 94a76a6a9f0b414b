"""ge: ``input >= other``; a mask without scale."""

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
        "ge",
        Comparison("GreaterOrEqual", torch.ge, np.greater_equal),
        (
            FunctionTarget(torch.ge, binary),
            FunctionTarget(torch.greater_equal, binary),
            FunctionTarget(operator.ge, binary),
            MethodTarget("ge", binary),
            MethodTarget("greater_equal", binary),
            MethodTarget("__ge__", binary),
        ),
        doc="input >= other",
    )
)
