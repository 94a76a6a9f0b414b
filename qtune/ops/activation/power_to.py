"""power_to: a tensor to the power of a number; a table. What pow becomes with such an exponent."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register


def _power_to(input: torch.Tensor, *, exponent: float) -> torch.Tensor:
    return torch.pow(input, exponent)


register(
    table_operator(
        "power_to",
        _power_to,
        FloatForm("PowerTo", "qtune"),
        Spellings(),
        defaults={"exponent": 3.0},
        doc="input ** exponent; what pow becomes where the exponent is another number than 2",
    )
)
