"""rsqrt: 1 / sqrt(x + eps); a table. The normalizations give an eps, torch's own call has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register


def _rsqrt(input: torch.Tensor, *, eps: float = 0.0) -> torch.Tensor:
    return torch.rsqrt(input + eps) if eps else torch.rsqrt(input)


def _to_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"eps": float(attrs.get("eps", 0.0))}


register(
    table_operator(
        "rsqrt",
        _rsqrt,
        FloatForm("Rsqrt", "qtune", to_onnx=_to_onnx),
        Spellings(
            modules=(),
            functions=(torch.rsqrt,),
            methods=("rsqrt", "rsqrt_"),
        ),
        doc="1 / sqrt(x), of x + eps inside a normalization",
    )
)
