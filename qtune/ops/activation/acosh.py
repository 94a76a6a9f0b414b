"""acosh: inverse hyperbolic cosine; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "acosh",
        torch.acosh,
        FloatForm("Acosh"),
        Spellings(
            functions=(torch.acosh, torch.arccosh),
            methods=("acosh", "acosh_", "arccosh", "arccosh_"),
        ),
        doc="inverse hyperbolic cosine",
    )
)
