"""logsigmoid: log(1 / (1 + exp(-x))); a table."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "logsigmoid",
        F.logsigmoid,
        FloatForm("LogSigmoid", "qtune"),
        Spellings(modules=(nn.LogSigmoid,), functions=(F.logsigmoid,)),
        doc="log(1 / (1 + exp(-x)))",
    )
)
