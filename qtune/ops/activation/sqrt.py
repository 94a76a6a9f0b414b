"""sqrt: square root; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "sqrt",
        torch.sqrt,
        FloatForm("Sqrt"),
        Spellings(
            modules=(),
            functions=(torch.sqrt,),
            methods=("sqrt", "sqrt_"),
        ),
        doc="square root",
    )
)
