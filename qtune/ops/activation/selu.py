"""selu: scaled exponential linear unit; a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register

ALPHA, GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""ONNX's defaults: torch's constants in float32."""


def _to_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _from_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    alpha, gamma = attrs.get("alpha", ALPHA), attrs.get("gamma", GAMMA)
    own = np.float32(alpha) == np.float32(ALPHA) and np.float32(gamma) == np.float32(GAMMA)
    return {} if own else {"alpha": alpha, "gamma": gamma}


def _selu(x: torch.Tensor, alpha: float | None = None, gamma: float = GAMMA) -> torch.Tensor:
    """torch's function; with an ``alpha``, as imported files have it, ONNX's general form."""
    if alpha is None:
        return F.selu(x)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


register(
    table_operator(
        "selu",
        _selu,
        FloatForm("Selu", "", _to_onnx, _from_onnx),
        Spellings(
            modules=(nn.SELU,),
            functions=(F.selu, torch.selu, F.selu_),
            methods=(),
        ),
        doc="scaled exponential linear unit",
    )
)
