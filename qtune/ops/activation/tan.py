"""tan: tangent; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "tan",
        torch.tan,
        FloatForm("Tan"),
        Spellings(
            functions=(torch.tan,),
            methods=("tan", "tan_"),
        ),
        doc="tangent",
    )
)
