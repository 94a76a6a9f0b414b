"""tanh: hyperbolic tangent; a table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import ANY_MARCH

register(
    table_operator(
        "tanh",
        torch.tanh,
        FloatForm("Tanh"),
        Spellings(
            modules=(nn.Tanh,),
            functions=(torch.tanh, F.tanh),
            methods=("tanh", "tanh_"),
        ),
        march=ANY_MARCH,
        doc="hyperbolic tangent",
    )
)
