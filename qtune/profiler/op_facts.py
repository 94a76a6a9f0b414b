"""What a profiler says about a module that is one operator: its type, place and parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from qtune.nn.qat import QATOp
from qtune.nn.qat.functional import FloatFunctional
from qtune.nn.quantized import PreservedOp, QuantizedFunctional, QuantizedOp
from qtune.nn.quantized.frozen import FrozenOp
from qtune.profiler.tensor_info import Seen

_GENERATED = "_generated_"
"""How the names of functions begin (``qtune.prepare.naming``)."""

Converted = (QuantizedOp, PreservedOp)
"""Classes of modules that are one operator, or fused group, of a converted model."""


def registry_name(module: nn.Module | None) -> str:
    """Name of the operator in the registry, ``""`` where there is none."""
    members = _members(module)
    return members[-1].op if members else ""


def place_of(name: str, scope: str) -> str:
    """The path of a layer, of a function that of the module whose forward calls it."""
    return scope if name.startswith(_GENERATED) else name


def method_of(name: str, module: nn.Module | None) -> str:
    """What a ``FloatFunctional`` was called for, ``""`` for any other operator.

    In a graph it is an operator that stands for a function and has a name of the user's.
    """
    members = _members(module)
    if not members or name.startswith(_GENERATED):
        return ""
    spelled = members[-1].float_type.rpartition(".")[2]
    is_known = isinstance(module, FloatFunctional | QuantizedFunctional)
    return members[-1].op if is_known or spelled[:1].islower() else ""


def parameters_of(module: nn.Module | None) -> dict[str, Seen]:
    """Weight, bias and other parameters by role, as they are now.

    The float numbers of a prepared operator; of a converted one those of the codes.
    """
    if isinstance(module, QuantizedOp):
        pairs = {"weight": module.weight(), "bias": module.bias()}.items()
        return {role: Seen.of(value) for role, value in pairs if value is not None}
    members = _members(module)
    if not members:
        return {} if module is None else _seen(module.named_parameters())
    found: dict[str, Seen] = {}
    for member in members:
        found.update({k: v for k, v in _roles(member).items() if k not in found})
    return found


def _roles(op: QATOp) -> dict[str, Seen]:
    seen = _seen((role, op.param(role)) for role in op.params)
    role, quantizer = op.spec.weight_role, op.weight_fake_quant
    if role in seen and quantizer is not None:
        float_weight = seen[role]
        seen[role] = Seen(float_weight.value, float_weight.dtype, None, quantizer.ch_axis)
    return seen


def _seen(pairs: Iterable[tuple[str, Any]]) -> dict[str, Seen]:
    return {name: Seen.of(value) for name, value in pairs if value is not None}


def _members(module: nn.Module | None) -> list[QATOp]:
    if isinstance(module, QATOp) and not isinstance(module, FrozenOp):
        return [module]
    members: Any = module.members if isinstance(module, Converted) else ()
    return list(members)
