"""rsqrt: 1 / sqrt(x); a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "rsqrt",
        torch.rsqrt,
        FloatForm("Rsqrt", "qtune"),
        Spellings(
            modules=(),
            functions=(torch.rsqrt,),
            methods=("rsqrt", "rsqrt_"),
        ),
        doc="1 / sqrt(x)",
    )
)
