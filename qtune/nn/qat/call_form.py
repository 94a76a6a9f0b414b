"""How the user's own forward calls an operator that stands where a layer was (eager mode)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from qtune.ops.registry import find_module
from qtune.ops.spec import Bound, ModuleTarget

Call = tuple[tuple[Any, ...], dict[str, Any]]


class CallForm:
    """Brings the call of a layer (``conv(x)``) to that of its operator, one operand per role.

    ``attrs``: the static arguments that the operator has; a call that sets others hands them over.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._layer = _without_tensors(layer)
        self.attrs: dict[str, Any] = {}
        self._filled: frozenset[int] = frozenset()
        self._count = -1

    def learn(self, operands: tuple[Any, ...], attrs: Mapping[str, Any], roles: Any) -> None:
        """What a call of the operator looks like: ``roles`` are those that parameters fill."""
        self.attrs = dict(attrs)
        self._count = len(operands)
        self._filled = frozenset(roles)

    def operands(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Operands and the arguments that differ from the operator's own."""
        if self._is_canonical(args, kwargs):
            return args, dict(kwargs)
        bound = self.bind(*args, **kwargs)
        own = self.attrs
        changed = {k: v for k, v in bound.attrs.items() if k not in own or not _same(own[k], v)}
        return bound.tensors, changed

    def bind(self, *args: Any, **kwargs: Any) -> Bound:
        """The call in canonical form. Raises ``TypeError`` as the layer would."""
        return self._target().bind(self._layer, *args, **kwargs)

    def _target(self) -> ModuleTarget:
        found = find_module(type(self._layer))
        if found is None:
            raise TypeError(f"{type(self._layer).__name__} is no layer of the registry")
        return found[1]

    def _is_canonical(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a graph makes the call: every operand is there, parameters as ``None``."""
        if len(args) != self._count or not set(kwargs) <= set(self.attrs):
            return False
        return all(args[index] is None for index in self._filled)


def _without_tensors(layer: nn.Module) -> nn.Module:
    """The layer's settings alone."""
    twin = copy.copy(layer)
    for name in ("_parameters", "_buffers", "_modules"):
        members = dict.fromkeys(vars(layer)[name])
        vars(twin)[name] = members
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
        vars(twin)[name] = type(vars(layer)[name])()
    return twin


def _same(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except (RuntimeError, ValueError):
        return first is second
