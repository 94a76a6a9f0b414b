"""sigmoid: 1 / (1 + exp(-x)); a table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import ANY_MARCH

register(
    table_operator(
        "sigmoid",
        torch.sigmoid,
        FloatForm("Sigmoid"),
        Spellings(
            modules=(nn.Sigmoid,),
            functions=(torch.sigmoid, F.sigmoid, torch.special.expit),
            methods=("sigmoid", "sigmoid_"),
        ),
        march=ANY_MARCH,
        doc="1 / (1 + exp(-x))",
    )
)
