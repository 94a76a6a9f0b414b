"""cosh: hyperbolic cosine; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "cosh",
        torch.cosh,
        FloatForm("Cosh"),
        Spellings(
            functions=(torch.cosh,),
            methods=("cosh", "cosh_"),
        ),
        doc="hyperbolic cosine",
    )
)
