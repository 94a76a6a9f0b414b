"""eq: ``input == other``; a mask without scale."""

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
        "eq",
        Comparison("Equal", torch.eq, np.equal),
        (
            FunctionTarget(torch.eq, binary),
            FunctionTarget(operator.eq, binary),
            MethodTarget("eq", binary),
            MethodTarget("__eq__", binary),
        ),
        doc="input == other",
    )
)
