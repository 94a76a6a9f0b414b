"""hardswish: x * relu6(x + 3) / 6; a table."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "hardswish",
        F.hardswish,
        FloatForm("HardSwish"),
        Spellings(
            modules=(nn.Hardswish,),
            functions=(F.hardswish,),
            methods=(),
        ),
        doc="x * relu6(x + 3) / 6",
    )
)
