"""mish: x * tanh(softplus(x)); a table."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "mish",
        F.mish,
        FloatForm("Mish"),
        Spellings(
            modules=(nn.Mish,),
            functions=(F.mish,),
            methods=(),
        ),
        doc="x * tanh(softplus(x))",
    )
)
