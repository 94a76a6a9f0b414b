"""ONNX Shrink: what softshrink and hardshrink lower to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.spec import Bound


def bind_shrink(input: Any, lambd: float = 0.5) -> Bound:
    """``f(input, lambd)``."""
    return Bound((input,), {"lambd": float(lambd)})


def bind_shrink_module(module: nn.Module, input: Any) -> Bound:
    """A module with the attribute ``lambd``."""
    lambd: Any = module.lambd
    return bind_shrink(input, lambd)


def shrink(x: torch.Tensor, *, lambd: float, bias: float) -> torch.Tensor:
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, else 0."""
    if bias == 0:
        return F.hardshrink(x, lambd)
    if bias == lambd:
        return F.softshrink(x, lambd)
    moved = torch.where(x < 0, x + bias, x - bias)
    return torch.where(x.abs() > lambd, moved, torch.zeros_like(x))


def lower_shrink(b: Builder, call: LowerCall, bias: float) -> Any:
    """Emit Shrink."""
    attrs = {"lambd": call.attrs["lambd"], "bias": bias}
    return b.add("Shrink", [call.operands[0]], attrs)


def shrink_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an ONNX Shrink with its defaults."""
    return {"lambd": attrs.get("lambd", 0.5), "bias": attrs.get("bias", 0.0)}
