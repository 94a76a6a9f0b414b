"""erfc: 1 - erf(x); a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "erfc",
        torch.erfc,
        FloatForm("Erfc", "qtune"),
        Spellings(
            functions=(torch.erfc, torch.special.erfc),
            methods=("erfc", "erfc_"),
        ),
        doc="1 - erf(x)",
    )
)
