"""Runs a call as a user spells it and compares it with what the registry makes of it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qtune.ops import registry

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


class Spelled(TorchFunctionMode):
    """The torch calls of a block, as (operator name, equal to the canonical call)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, bool]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        is_method = isinstance(func, _METHODS) or getattr(torch.Tensor, name, None) is func
        found: Any = registry.find_method(name) if is_method else registry.find_function(func)
        if found is not None:
            spec, target = found
            bound = target.bind(*args, **kwargs)
            canonical = spec.float_kernel(*_clones(bound.tensors), **bound.attrs)
        result = func(*args, **kwargs)
        if found is not None:
            changed = args[0] if result is None else result  # x[i] = y returns nothing
            self.calls.append((spec.name, same(canonical, changed)))
        return result


def _clones(tensors: tuple[Any, ...]) -> list[Any]:
    return [t.clone() if isinstance(t, torch.Tensor) else t for t in tensors]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(torch.equal(a, b))


def operator_of(call: Callable[[], Any]) -> str:
    """The one operator that a call is; its canonical form gave the same result."""
    with Spelled() as spelled:
        call()
    (name, equal), *more = spelled.calls
    assert not more, f"more than one operator: {spelled.calls}"
    assert equal, f"{name}: the canonical call gives another result"
    return name


def operator_of_module(module: nn.Module, x: torch.Tensor) -> str:
    """The operator of a module; its canonical form gave the module's result."""
    found = registry.find_module(type(module))
    assert found is not None
    spec, target = found
    bound = target.bind(module, x)
    assert spec.float_kernel is not None
    assert same(spec.float_kernel(*bound.tensors, **bound.attrs), module(x))
    return spec.name
