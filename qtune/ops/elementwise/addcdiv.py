"""addcdiv: a tensor and the scaled quotient of two others; div and add, int16 inside."""

from __future__ import annotations

import torch

from qtune.ops.elementwise.scaled_term import scaled_term
from qtune.ops.registry import register

register(
    scaled_term(
        "addcdiv",
        torch.addcdiv,
        "div",
        "Div",
        doc="input + value * tensor1 / tensor2: div, add; int16 inside",
    )
)
