"""softsign: x / (1 + abs(x)); a table."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "softsign",
        F.softsign,
        FloatForm("Softsign"),
        Spellings(
            modules=(nn.Softsign,),
            functions=(F.softsign,),
            methods=(),
        ),
        doc="x / (1 + abs(x))",
    )
)
