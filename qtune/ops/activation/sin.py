"""sin: sine; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "sin",
        torch.sin,
        FloatForm("Sin"),
        Spellings(
            modules=(),
            functions=(torch.sin,),
            methods=("sin", "sin_"),
        ),
        doc="sine",
    )
)
