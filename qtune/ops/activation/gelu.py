"""gelu: x * Phi(x), or its tanh approximation; a table."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import ANY_MARCH, Bound


def _bind(input: Any, *, approximate: str = "none") -> Bound:
    return Bound((input,), {"approximate": approximate})


def _bind_module(module: nn.GELU, input: Any) -> Bound:
    return Bound((input,), {"approximate": module.approximate})


register(
    table_operator(
        "gelu",
        F.gelu,
        FloatForm("Gelu"),
        Spellings(modules=(nn.GELU,), functions=(F.gelu,), bind=_bind, bind_module=_bind_module),
        defaults={"approximate": "none"},
        march=ANY_MARCH,
        doc="x * Phi(x)",
    )
)
