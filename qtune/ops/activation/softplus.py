"""softplus: log(1 + exp(beta * x)) / beta, x itself above the threshold; a table."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import Bound


def _bind(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Bound:
    return Bound((input,), {"beta": float(beta), "threshold": float(threshold)})


def _bind_module(module: nn.Softplus, input: Any) -> Bound:
    return _bind(input, module.beta, module.threshold)


register(
    table_operator(
        "softplus",
        F.softplus,
        FloatForm("ScaledSoftplus", "qtune"),
        Spellings(
            modules=(nn.Softplus,), functions=(F.softplus,), bind=_bind, bind_module=_bind_module
        ),
        defaults={"beta": 1.0, "threshold": 20.0},
        doc="log(1 + exp(beta * x)) / beta",
    )
)
