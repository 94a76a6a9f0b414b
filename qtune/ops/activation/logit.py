"""logit: log(x / (1 - x)), the inverse of sigmoid; a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import Bound

_NO_EPS = -1.0
"""The attribute eps in HBIR where torch has None."""


def _bind(input: Any, eps: float | None = None) -> Bound:
    return Bound((input,), {"eps": None if eps is None else float(eps)})


def _to_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"eps": _NO_EPS if attrs["eps"] is None else attrs["eps"]}


def _from_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"eps": None if attrs["eps"] < 0 else attrs["eps"]}


register(
    table_operator(
        "logit",
        torch.logit,
        FloatForm("Logit", "qtune", _to_onnx, _from_onnx),
        Spellings(
            functions=(torch.logit, torch.special.logit),
            methods=("logit", "logit_"),
            bind=_bind,
        ),
        defaults={"eps": 0.05},
        doc="log(x / (1 - x)), x cut to eps .. 1 - eps",
    )
)
