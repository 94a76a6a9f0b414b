"""hardsigmoid: relu6(x + 3) / 6; a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register


def _to_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"alpha": 1 / 6, "beta": 0.5}


def _from_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    alpha, beta = attrs.get("alpha", 0.2), attrs.get("beta", 0.5)
    own = np.float32(alpha) == np.float32(1 / 6) and beta == 0.5
    return {} if own else {"alpha": alpha, "beta": beta}


def _hardsigmoid(x: torch.Tensor, alpha: float | None = None, beta: float = 0.5) -> torch.Tensor:
    """torch's function; with an ``alpha``, as imported files have it, ONNX's general form."""
    return F.hardsigmoid(x) if alpha is None else (alpha * x + beta).clamp(0, 1)


register(
    table_operator(
        "hardsigmoid",
        _hardsigmoid,
        FloatForm("HardSigmoid", "", _to_onnx, _from_onnx),
        Spellings(modules=(nn.Hardsigmoid,), functions=(F.hardsigmoid,)),
        doc="relu6(x + 3) / 6",
    )
)
