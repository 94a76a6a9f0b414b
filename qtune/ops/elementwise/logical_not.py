"""logical_not: the negation of a mask."""

from __future__ import annotations

import operator

import numpy as np
import torch

from qtune.ops.elementwise.binding import unary
from qtune.ops.elementwise.logic import bitwise, logical
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, MethodTarget

register(
    logical(
        "logical_not",
        "Not",
        (torch.logical_not, torch.bitwise_not),
        np.logical_not,
        ("input",),
        (
            FunctionTarget(torch.logical_not, unary),
            FunctionTarget(torch.bitwise_not, bitwise),
            FunctionTarget(operator.invert, bitwise),
            MethodTarget("logical_not", unary),
            MethodTarget("logical_not_", unary),
            MethodTarget("bitwise_not", bitwise),
            MethodTarget("bitwise_not_", bitwise),
            MethodTarget("__invert__", bitwise),
        ),
        doc="not input, a mask",
    )
)
