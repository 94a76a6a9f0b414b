"""logical_and: ``input & other`` on masks."""

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
        "logical_and",
        "And",
        (torch.logical_and, torch.bitwise_and),
        np.logical_and,
        ("input", "other"),
        (
            FunctionTarget(torch.logical_and, binary),
            FunctionTarget(torch.bitwise_and, bitwise),
            FunctionTarget(operator.and_, bitwise),
            MethodTarget("logical_and", binary),
            MethodTarget("logical_and_", binary),
            MethodTarget("bitwise_and", bitwise),
            MethodTarget("bitwise_and_", bitwise),
            MethodTarget("__and__", bitwise),
            MethodTarget("__rand__", bitwise),
            MethodTarget("__iand__", bitwise),
        ),
        doc="input & other, masks",
    )
)
