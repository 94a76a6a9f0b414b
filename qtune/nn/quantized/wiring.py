"""How the operators of one group are connected, as plain values that pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg


@dataclass(frozen=True, slots=True)
class External:
    """The operand ``index`` of the group's call."""

    index: int


@dataclass(frozen=True, slots=True)
class Made:
    """The result of member ``index``."""

    index: int


@dataclass(frozen=True, slots=True)
class Wiring:
    """For each member its positional arguments and its keyword arguments, with markers.

    ``count``: number of operands.
    """

    calls: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
    count: int = 0

    @classmethod
    def of(cls, nodes: Sequence[fx.Node]) -> tuple[Wiring, list[fx.Node]]:
        """The wiring of a group's nodes, and the nodes outside that become its operands."""
        places = {node: Made(index) for index, node in enumerate(nodes)}
        outside: dict[fx.Node, External] = {}

        def mark(node: fx.Node) -> Any:
            if node in places:
                return places[node]
            return outside.setdefault(node, External(len(outside)))

        calls = tuple(
            (_plain(map_arg(node.args, mark)), _plain(map_arg(dict(node.kwargs), mark)))
            for node in nodes
        )
        return cls(calls, len(outside)), list(outside)

    @classmethod
    def around(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Wiring, list[Any]]:
        """One operator on these arguments, and the tensors in them, which are its operands."""
        tensors: list[Any] = []

        def mark(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            tensors.append(item)
            return External(len(tensors) - 1)

        calls = ((mapped(args, mark), mapped(kwargs, mark)),)
        return cls(calls, len(tensors)), tensors

    def resolve(
        self, index: int, operands: Sequence[Any], made: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of member ``index``."""
        args, kwargs = self.calls[index]

        def put(item: Any) -> Any:
            if isinstance(item, External):
                return operands[item.index]
            return made[item.index] if isinstance(item, Made) else item

        return mapped(args, put), mapped(kwargs, put)


def _plain(value: Any) -> Any:
    """fx's immutable containers as plain ones."""
    return mapped(value, lambda item: item)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``change`` on every leaf of tuples, lists, dicts and slices."""
    if isinstance(value, slice):
        parts = (mapped(part, change) for part in (value.start, value.stop, value.step))
        return slice(*parts)
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        items = [mapped(item, change) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return change(value)
