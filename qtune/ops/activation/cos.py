"""cos: cosine; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "cos",
        torch.cos,
        FloatForm("Cos"),
        Spellings(
            modules=(),
            functions=(torch.cos,),
            methods=("cos", "cos_"),
        ),
        doc="cosine",
    )
)
