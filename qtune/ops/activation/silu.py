"""silu: x * sigmoid(x); a table."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import ANY_MARCH

register(
    table_operator(
        "silu",
        F.silu,
        FloatForm("Silu", "qtune"),
        Spellings(
            modules=(nn.SiLU,),
            functions=(F.silu,),
            methods=(),
        ),
        march=ANY_MARCH,
        doc="x * sigmoid(x)",
    )
)
