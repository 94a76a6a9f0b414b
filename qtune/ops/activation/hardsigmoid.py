"""hardsigmoid: relu6(x + 3) / 6; a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register


def _to_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"alpha": 1 / 6, "beta": 0.5}


def _from_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {}


register(
    table_operator(
        "hardsigmoid",
        F.hardsigmoid,
        FloatForm("HardSigmoid", "", _to_onnx, _from_onnx),
        Spellings(modules=(nn.Hardsigmoid,), functions=(F.hardsigmoid,)),
        doc="relu6(x + 3) / 6",
    )
)
