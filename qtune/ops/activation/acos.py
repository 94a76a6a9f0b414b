"""acos: arc cosine; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "acos",
        torch.acos,
        FloatForm("Acos"),
        Spellings(
            functions=(torch.acos, torch.arccos),
            methods=("acos", "acos_", "arccos", "arccos_"),
        ),
        doc="arc cosine",
    )
)
