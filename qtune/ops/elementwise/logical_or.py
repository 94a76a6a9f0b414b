"""logical_or: ``input | other`` on masks."""

from __future__ import annotations

import operator

import numpy as np
import torch

from qtune.ops.elementwise.binding import binary
from qtune.ops.elementwise.logic import bitwise, logical
from qtune.ops.registry import register
from qtune.ops.spec import FunctionTarget, MethodTarget

register(
    logical(
        "logical_or",
        "Or",
        (torch.logical_or, torch.bitwise_or),
        np.logical_or,
        ("input", "other"),
        (
            FunctionTarget(torch.logical_or, binary),
            FunctionTarget(torch.bitwise_or, bitwise),
            FunctionTarget(operator.or_, bitwise),
            MethodTarget("logical_or", binary),
            MethodTarget("logical_or_", binary),
            MethodTarget("bitwise_or", bitwise),
            MethodTarget("bitwise_or_", bitwise),
            MethodTarget("__or__", bitwise),
            MethodTarget("__ror__", bitwise),
            MethodTarget("__ior__", bitwise),
        ),
        doc="input | other, masks",
    )
)
