"""selu: scaled exponential linear unit; a table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "selu",
        F.selu,
        FloatForm("Selu"),
        Spellings(
            modules=(nn.SELU,),
            functions=(F.selu, torch.selu, F.selu_),
            methods=(),
        ),
        doc="scaled exponential linear unit",
    )
)
