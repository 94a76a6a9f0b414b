"""sign: -1, 0 or 1; a table."""

from __future__ import annotations

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

register(
    table_operator(
        "sign",
        torch.sign,
        FloatForm("Sign"),
        Spellings(
            functions=(torch.sign, torch.sgn),
            methods=("sign", "sign_", "sgn", "sgn_"),
        ),
        doc="-1, 0 or 1",
    )
)
