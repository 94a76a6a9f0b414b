"""sinc: sin(pi x) / (pi x), 1 at 0; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "sinc",
        torch.sinc,
        FloatForm("Sinc", "qtune"),
        Spellings(
            functions=(torch.sinc, torch.special.sinc),
            methods=("sinc", "sinc_"),
        ),
        doc="sin(pi x) / (pi x), 1 at 0",
    )
)
