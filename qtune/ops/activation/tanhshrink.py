"""tanhshrink: x - tanh(x); a table."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "tanhshrink",
        F.tanhshrink,
        FloatForm("TanhShrink", "qtune"),
        Spellings(modules=(nn.Tanhshrink,), functions=(F.tanhshrink,)),
        doc="x - tanh(x)",
    )
)
