"""addcmul: a tensor and the scaled product of two others; mul and add, int16 inside."""

from __future__ import annotations

import torch

from qtune.ops.elementwise.scaled_term import scaled_term
from qtune.ops.registry import register

register(
    scaled_term(
        "addcmul",
        torch.addcmul,
        "mul",
        "Mul",
        doc="input + value * tensor1 * tensor2: mul, add; int16 inside",
    )
)
