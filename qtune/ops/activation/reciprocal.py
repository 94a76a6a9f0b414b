"""reciprocal: 1 / x; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "reciprocal",
        torch.reciprocal,
        FloatForm("Reciprocal"),
        Spellings(
            modules=(),
            functions=(torch.reciprocal,),
            methods=("reciprocal", "reciprocal_"),
        ),
        doc="1 / x",
    )
)
