"""log: natural logarithm; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "log",
        torch.log,
        FloatForm("Log"),
        Spellings(
            modules=(),
            functions=(torch.log,),
            methods=("log", "log_"),
        ),
        doc="natural logarithm",
    )
)
