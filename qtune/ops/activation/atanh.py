"""atanh: inverse hyperbolic tangent; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "atanh",
        torch.atanh,
        FloatForm("Atanh"),
        Spellings(
            functions=(torch.atanh, torch.arctanh),
            methods=("atanh", "atanh_", "arctanh", "arctanh_"),
        ),
        doc="inverse hyperbolic tangent",
    )
)
