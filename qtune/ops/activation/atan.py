"""atan: arc tangent; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "atan",
        torch.atan,
        FloatForm("Atan"),
        Spellings(
            functions=(torch.atan, torch.arctan),
            methods=("atan", "atan_", "arctan", "arctan_"),
        ),
        doc="arc tangent",
    )
)
