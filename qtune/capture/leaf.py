"""Which modules are one call in the graph, and which are entered."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from qtune.ops.registry import find_module


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is recorded as one call.

    A leaf is an instance of a torch layer, or of a class that the registry knows, that runs the
    ``forward`` of that class; a subclass with its own ``__init__`` is one too. Entered are:
    subclasses and instances with a ``forward`` of their own, torch's containers (anything that has
    modules inside and isn't in the registry), and parametrized layers, whose weight is computed.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return True
    if "forward" in vars(module):
        return False
    cls: Any = type(module)
    if not _runs_known_forward(cls):
        return False
    if not module._modules:
        return True
    return "parametrizations" not in module._modules and find_module(cls) is not None


@cache
def _runs_known_forward(cls: Any) -> bool:
    base = next((c for c in cls.__mro__ if c is not nn.Module and _is_known(c)), None)
    return base is not None and cls.forward is base.forward


def _is_known(cls: type) -> bool:
    if not issubclass(cls, nn.Module):
        return False
    if cls.__module__.startswith("torch."):
        return True
    found = find_module(cls)
    return found is not None and found[1].cls is cls
