"""threshold: x where x > threshold, else value; a table."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import Bound


def _bind(input: Any, threshold: float, value: float, inplace: bool = False) -> Bound:
    return Bound((input,), {"threshold": float(threshold), "value": float(value)})


def _bind_module(module: nn.Threshold, input: Any) -> Bound:
    return _bind(input, module.threshold, module.value)


register(
    table_operator(
        "threshold",
        F.threshold,
        FloatForm("Threshold", "qtune"),
        Spellings(
            modules=(nn.Threshold,),
            functions=(F.threshold, F.threshold_, torch.threshold),  # type: ignore[attr-defined]
            bind=_bind,
            bind_module=_bind_module,
        ),
        defaults={"threshold": 0.1, "value": -0.5},
        doc="x where x > threshold, else value",
    )
)
