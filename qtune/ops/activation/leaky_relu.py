"""leaky_relu: x where x > 0, else negative_slope * x; a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import nn

from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.registry import register
from qtune.ops.spec import Bound


def _bind(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Bound:
    return Bound((input,), {"negative_slope": float(negative_slope)})


def _bind_module(module: nn.LeakyReLU, input: Any) -> Bound:
    return Bound((input,), {"negative_slope": float(module.negative_slope)})


def _to_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"alpha": attrs["negative_slope"]}


def _from_onnx(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"negative_slope": attrs["alpha"]}


register(
    table_operator(
        "leaky_relu",
        F.leaky_relu,
        FloatForm("LeakyRelu", "", _to_onnx, _from_onnx),
        Spellings(
            modules=(nn.LeakyReLU,),
            functions=(F.leaky_relu, F.leaky_relu_),
            bind=_bind,
            bind_module=_bind_module,
        ),
        defaults={"negative_slope": 0.01},
        doc="x where x > 0, else negative_slope * x",
    )
)
