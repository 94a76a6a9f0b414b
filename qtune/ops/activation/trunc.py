"""trunc: whole part of x, towards 0; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "trunc",
        torch.trunc,
        FloatForm("Trunc", "qtune"),
        Spellings(
            functions=(torch.trunc, torch.fix),
            methods=("trunc", "trunc_", "fix", "fix_"),
        ),
        doc="whole part of x, towards 0",
    )
)
