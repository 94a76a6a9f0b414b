"""log10: logarithm to the base 10; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "log10",
        torch.log10,
        FloatForm("Log10", "qtune"),
        Spellings(
            functions=(torch.log10,),
            methods=("log10", "log10_"),
        ),
        doc="logarithm to the base 10",
    )
)
