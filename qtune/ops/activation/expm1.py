"""expm1: exp(x) - 1; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "expm1",
        torch.expm1,
        FloatForm("Expm1", "qtune"),
        Spellings(
            functions=(torch.expm1, torch.special.expm1),
            methods=("expm1", "expm1_"),
        ),
        doc="exp(x) - 1",
    )
)
