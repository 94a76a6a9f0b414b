"""log1p: log(1 + x); a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "log1p",
        torch.log1p,
        FloatForm("Log1p", "qtune"),
        Spellings(
            functions=(torch.log1p, torch.special.log1p),
            methods=("log1p", "log1p_"),
        ),
        doc="log(1 + x)",
    )
)
