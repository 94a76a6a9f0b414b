"""ceil: smallest whole number not below x; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "ceil",
        torch.ceil,
        FloatForm("Ceil"),
        Spellings(
            functions=(torch.ceil,),
            methods=("ceil", "ceil_"),
        ),
        doc="smallest whole number not below x",
    )
)
