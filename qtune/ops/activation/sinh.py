"""sinh: hyperbolic sine; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "sinh",
        torch.sinh,
        FloatForm("Sinh"),
        Spellings(
            functions=(torch.sinh,),
            methods=("sinh", "sinh_"),
        ),
        doc="hyperbolic sine",
    )
)
