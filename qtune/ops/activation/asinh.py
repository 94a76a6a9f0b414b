"""asinh: inverse hyperbolic sine; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "asinh",
        torch.asinh,
        FloatForm("Asinh"),
        Spellings(
            functions=(torch.asinh, torch.arcsinh),
            methods=("asinh", "asinh_", "arcsinh", "arcsinh_"),
        ),
        doc="inverse hyperbolic sine",
    )
)
