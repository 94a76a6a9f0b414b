"""asin: arc sine; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "asin",
        torch.asin,
        FloatForm("Asin"),
        Spellings(
            functions=(torch.asin, torch.arcsin),
            methods=("asin", "asin_", "arcsin", "arcsin_"),
        ),
        doc="arc sine",
    )
)
