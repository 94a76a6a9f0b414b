"""exp: exp(x); a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import ANY_MARCH

register(
    table_operator(
        "exp",
        torch.exp,
        FloatForm("Exp"),
        Spellings(
            modules=(),
            functions=(torch.exp,),
            methods=("exp", "exp_"),
        ),
        march=ANY_MARCH,
        doc="exp(x)",
    )
)
