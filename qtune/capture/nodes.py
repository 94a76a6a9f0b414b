"""Small facts on fx nodes that several files here need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, fx


def describe(node: fx.Node, value: Any) -> None:
    """Set the node's ``shape`` and ``dtype``: those of a tensor, or tuples of them for several.

    For one tensor its ``device`` too.
    """
    if isinstance(value, Tensor):
        node.meta.update(shape=tuple(value.shape), dtype=value.dtype, device=value.device)
        return
    items = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(items, tuple | list) and any(isinstance(item, Tensor) for item in items):
        tensors = [item if isinstance(item, Tensor) else None for item in items]
        node.meta.update(
            shape=tuple(None if t is None else tuple(t.shape) for t in tensors),
            dtype=tuple(None if t is None else t.dtype for t in tensors),
        )


def name_of(node: fx.Node) -> str:
    """How messages call a value: the input, the parameter, the module or the node that made it."""
    return str(node.target) if node.op in ("placeholder", "get_attr", "call_module") else node.name


def name_hint(target: Any) -> str | None:
    """A base for a node's name where fx can't make one of the target."""
    if isinstance(target, str) or hasattr(target, "__name__"):
        return None
    return str(getattr(target, "name", type(target).__name__))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, slice):
        yield from tensors_in((value.start, value.stop, value.step))


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to all that is no tuple, list, dict or slice.

    Tuple subclasses become plain tuples. What needs no change is returned as it is.
    """
    if isinstance(value, slice):
        return slice(*map_leaves((value.start, value.stop, value.step), change))
    if isinstance(value, tuple | list):
        items = [map_leaves(item, change) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    return change(value)
