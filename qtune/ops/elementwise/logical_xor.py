"""logical_xor: ``input ^ other`` on masks."""

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
        "logical_xor",
        "Xor",
        (torch.logical_xor, torch.bitwise_xor),
        np.logical_xor,
        ("input", "other"),
        (
            FunctionTarget(torch.logical_xor, binary),
            FunctionTarget(torch.bitwise_xor, bitwise),
            FunctionTarget(operator.xor, bitwise),
            MethodTarget("logical_xor", binary),
            MethodTarget("logical_xor_", binary),
            MethodTarget("bitwise_xor", bitwise),
            MethodTarget("bitwise_xor_", bitwise),
            MethodTarget("__xor__", bitwise),
            MethodTarget("__rxor__", bitwise),
            MethodTarget("__ixor__", bitwise),
        ),
        doc="input ^ other, masks",
    )
)
