"""dropout: the identity outside training; the mask is applied while a QAT model trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ExportError
from qtune.ops.kernel import Builder, LowerCall, Value
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget, ModuleTarget, OpSpec, Rule, Sample

_FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = MappingProxyType(
    {
        "dropout": F.dropout,
        "dropout1d": F.dropout1d,
        "dropout2d": F.dropout2d,
        "dropout3d": F.dropout3d,
        "alpha_dropout": F.alpha_dropout,
        "feature_alpha_dropout": F.feature_alpha_dropout,
    }
)

_MODULES: Mapping[type, str] = MappingProxyType(
    {
        nn.Dropout: "dropout",
        nn.Dropout1d: "dropout1d",
        nn.Dropout2d: "dropout2d",
        nn.Dropout3d: "dropout3d",
        nn.AlphaDropout: "alpha_dropout",
        nn.FeatureAlphaDropout: "feature_alpha_dropout",
    }
)


def _bind_module(kind: str) -> Callable[..., Bound]:
    def bind(module: nn.Module, input: Any) -> Bound:
        p: Any = module.p
        return Bound((input,), {"kind": kind, "p": p, "training": None})

    return bind


def _bind_function(kind: str, default: bool) -> Callable[..., Bound]:
    def bind(input: Any, p: float = 0.5, training: Any = default, inplace: bool = False) -> Bound:
        return Bound((input,), {"kind": kind, "p": p, "training": training})

    return bind


def _bind_torch(input: Any, p: float, train: bool) -> Bound:
    return Bound((input,), {"kind": "dropout", "p": p, "training": train})


def _float_kernel(
    input: torch.Tensor, kind: str = "dropout", p: float = 0.5, training: bool | None = None
) -> torch.Tensor:
    """``training`` None means the mode of the module, which the caller fills in; else False."""
    if not training:
        return input
    return _FUNCTIONS[kind](input, p, True)


def _lower(b: Builder, call: LowerCall) -> Value:
    if call.attrs.get("training"):
        raise ExportError(
            f"{call.name}: this dropout is always on (training=True), also in eval mode; a random "
            "mask has no HBIR form. Pass training=self.training, or use nn.Dropout"
        )
    return b.add("Identity", [call.operands[0]])


register(
    OpSpec(
        name="dropout",
        family="quant",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            *(ModuleTarget(cls, _bind_module(kind)) for cls, kind in _MODULES.items()),
            FunctionTarget(F.dropout, _bind_function("dropout", True)),
            FunctionTarget(F.dropout1d, _bind_function("dropout1d", True)),
            FunctionTarget(F.dropout2d, _bind_function("dropout2d", True)),
            FunctionTarget(F.dropout3d, _bind_function("dropout3d", True)),
            FunctionTarget(F.alpha_dropout, _bind_function("alpha_dropout", False)),
            FunctionTarget(F.feature_alpha_dropout, _bind_function("feature_alpha_dropout", False)),
            FunctionTarget(torch.dropout, _bind_torch),
        ),
        float_kernel=_float_kernel,
        lower=_lower,
        flops=lambda attrs, input_shapes, output_shape: 0,
        sample=lambda rng: Sample(
            ((2, int(rng.integers(1, 9))),), {"kind": "dropout", "p": 0.5, "training": None}
        ),
        doc="identity outside training",
    )
)
