"""power_of: a number to the power of a tensor; a table. What pow becomes with a number as base."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register


def _power_of(input: torch.Tensor, *, base: float) -> torch.Tensor:
    return torch.pow(base, input)


register(
    table_operator(
        "power_of",
        _power_of,
        FloatForm("PowerOf", "qtune"),
        Spellings(),
        defaults={"base": 1.5},
        doc="base ** input; what pow becomes where the base is a number",
    )
)
