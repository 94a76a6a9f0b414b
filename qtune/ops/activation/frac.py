"""frac: x - trunc(x); a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "frac",
        torch.frac,
        FloatForm("Frac", "qtune"),
        Spellings(
            functions=(torch.frac,),
            methods=("frac", "frac_"),
        ),
        doc="x - trunc(x)",
    )
)
