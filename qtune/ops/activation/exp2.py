"""exp2: 2 ** x; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "exp2",
        torch.exp2,
        FloatForm("Exp2", "qtune"),
        Spellings(
            functions=(torch.exp2, torch.special.exp2),
            methods=("exp2", "exp2_"),
        ),
        doc="2 ** x",
    )
)
