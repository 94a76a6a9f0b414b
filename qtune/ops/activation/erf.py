"""erf: error function; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "erf",
        torch.erf,
        FloatForm("Erf"),
        Spellings(
            modules=(),
            functions=(torch.erf, torch.special.erf),
            methods=("erf", "erf_"),
        ),
        doc="error function",
    )
)
