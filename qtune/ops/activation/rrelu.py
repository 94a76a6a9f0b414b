"""rrelu: leaky_relu with the mean slope outside training, a random one in it; a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ExportError
from qtune.ops.activation.table_rule import FloatForm, Spellings, table_operator
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import register
from qtune.ops.spec import Bound, FunctionTarget


def _bind(
    input: Any,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: Any = False,
    inplace: bool = False,
) -> Bound:
    attrs = {"lower": float(lower), "upper": float(upper), "training": training}
    return Bound((input,), attrs)


def _bind_torch(
    input: Any,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: Any = False,
    generator: Any = None,
) -> Bound:
    if generator is not None:
        raise NotImplementedError("rrelu with a generator; leave it out and seed torch instead")
    return _bind(input, lower, upper, training)


def _bind_module(module: nn.RReLU, input: Any) -> Bound:
    return Bound((input,), {"lower": module.lower, "upper": module.upper, "training": None})


def _rrelu(
    input: torch.Tensor, *, lower: float, upper: float, training: bool | None = None
) -> torch.Tensor:
    """``training`` None means the mode of the module, which the caller fills in; else False."""
    return F.rrelu(input, lower, upper, bool(training))


def _lower(b: Builder, call: LowerCall) -> Any:
    if call.attrs.get("training"):
        raise ExportError(
            f"{call.name}: this rrelu always draws random slopes (training=True); that has no HBIR "
            "form. Pass training=self.training, or use nn.RReLU"
        )
    alpha = (call.attrs["lower"] + call.attrs["upper"]) / 2
    return b.add("LeakyRelu", [call.operands[0]], {"alpha": alpha})


_SPEC = table_operator(
    "rrelu",
    _rrelu,
    FloatForm("LeakyRelu"),
    Spellings(
        modules=(nn.RReLU,),
        functions=(F.rrelu, F.rrelu_),
        bind=_bind,
        bind_module=_bind_module,
    ),
    defaults={"lower": 1.0 / 8, "upper": 1.0 / 3, "training": None},
    doc="leaky_relu with the mean of lower and upper; in training a random slope between them",
)

register(
    replace(
        _SPEC,
        targets=(*_SPEC.targets, FunctionTarget(torch.rrelu, _bind_torch)),
        lower=_lower,
        kernels=(),  # LeakyRelu is leaky_relu's
    )
)
