"""floor: largest whole number not above x; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "floor",
        torch.floor,
        FloatForm("Floor"),
        Spellings(
            functions=(torch.floor,),
            methods=("floor", "floor_"),
        ),
        doc="largest whole number not above x",
    )
)
