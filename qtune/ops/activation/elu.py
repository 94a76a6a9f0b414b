"""elu: x where x > 0, else alpha * (exp(x) - 1); a table."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import Bound


def _bind(input: Any, alpha: float = 1.0, inplace: bool = False) -> Bound:
    return Bound((input,), {"alpha": float(alpha)})


def _bind_module(module: nn.ELU, input: Any) -> Bound:
    return Bound((input,), {"alpha": float(module.alpha)})


register(
    table_operator(
        "elu",
        F.elu,
        FloatForm("Elu"),
        Spellings(
            modules=(nn.ELU,),
            functions=(F.elu, F.elu_),
            bind=_bind,
            bind_module=_bind_module,
        ),
        defaults={"alpha": 1.0},
        doc="x where x > 0, else alpha * (exp(x) - 1)",
    )
)
