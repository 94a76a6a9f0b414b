"""log2: logarithm to the base 2; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "log2",
        torch.log2,
        FloatForm("Log2", "qtune"),
        Spellings(
            functions=(torch.log2,),
            methods=("log2", "log2_"),
        ),
        doc="logarithm to the base 2",
    )
)
