"""Which modules are one call in the graph, and which are entered."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from qtune.ops.registry import find_module

_COMPOSED = ("torch.nn.modules.container", "torch.nn.modules.transformer")
"""Where torch defines modules that only call others."""


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is recorded as one call.

    A leaf is an instance of a torch layer, or of a class that the registry knows, that runs the
    ``forward`` of that class; a subclass with its own ``__init__`` is one too. Entered are:
    subclasses and instances with a ``forward`` of their own, modules that only call others, and
    parametrized layers, whose weight is computed.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return True
    if "forward" in vars(module) or "parametrizations" in module._modules:
        return False
    cls: Any = type(module)
    base = _known_base(cls)
    if base is None or cls.forward is not base.forward or base.__module__ in _COMPOSED:
        return False
    return _is_registered(base) or _is_layer(base) or not module._modules


def hands_on(module: nn.Module, args: Any) -> bool:
    """Whether this call is an ``nn.Identity`` of a structure: several tensors are no operand, so it
    is no operation, and its result is what it gets.
    """
    given = next(iter(args), None)
    return isinstance(module, nn.Identity) and isinstance(given, (tuple, list, dict))


@cache
def _known_base(cls: Any) -> Any:
    """The nearest class that is torch's or in the registry."""
    known = (c for c in cls.__mro__ if issubclass(c, nn.Module) and c is not nn.Module)
    return next((c for c in known if c.__module__.startswith("torch.") or _is_registered(c)), None)


def _is_layer(cls: type) -> bool:
    return cls.__module__.startswith("torch.nn.modules.")


def _is_registered(cls: type) -> bool:
    found = find_module(cls)
    return found is not None and found[1].cls is cls
