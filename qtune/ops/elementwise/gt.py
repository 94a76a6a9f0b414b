"""gt: ``input > other``; a mask without scale."""

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
        "gt",
        Comparison("Greater", torch.gt, np.greater),
        (
            FunctionTarget(torch.gt, binary),
            FunctionTarget(torch.greater, binary),
            FunctionTarget(operator.gt, binary),
            MethodTarget("gt", binary),
            MethodTarget("greater", binary),
            MethodTarget("__gt__", binary),
        ),
        doc="input > other",
    )
)
