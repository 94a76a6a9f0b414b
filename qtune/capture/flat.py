"""A graph as a flat list: pickling ``fx.Graph`` itself recurses from node to node, and some torch
functions (``F.max_pool2d``, ATen operators) have no pickled form.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate


@dataclass(frozen=True, slots=True)
class Ref:
    """Another node, by its place."""

    index: int


@dataclass(frozen=True, slots=True)
class Named:
    """A constant of torch that has no pickled form: a memory format, a layout."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """The target of a node. Pickled by name; never copied."""

    function: Callable[..., Any]

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        return self

    def __reduce__(self) -> Any:
        for module, path in _names(self.function):
            if _lookup(module, path) == self.function:
                return _load, (module, path)
        return Function, (self.function,)


@dataclass(frozen=True, slots=True)
class FlatNode:
    """One node; ``args`` and ``kwargs`` hold :class:`Ref` in place of nodes."""

    op: str
    name: str
    target: str | Function
    args: Any
    kwargs: Any
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FlatGraph:
    """All nodes in order of execution."""

    nodes: tuple[FlatNode, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> FlatGraph:
        return self  # never changed; graph() makes new nodes with meta of their own

    @staticmethod
    def of(graph: fx.Graph) -> FlatGraph:
        """The flat form of ``graph``."""
        places = {node: Ref(index) for index, node in enumerate(graph.nodes)}

        def ref(value: Any) -> Any:
            if isinstance(value, torch.memory_format | torch.layout):
                return Named(str(value).removeprefix("torch."))
            return places[value] if isinstance(value, fx.Node) else value

        return FlatGraph(tuple(_flat(node, ref) for node in graph.nodes))

    def graph(self) -> fx.Graph:
        """The graph again, with the same names."""
        graph = fx.Graph()
        made: list[fx.Node] = []

        def node(value: Any) -> Any:
            if isinstance(value, Named):
                return getattr(torch, value.name)
            return made[value.index] if isinstance(value, Ref) else value

        for flat in self.nodes:
            target = flat.target.function if isinstance(flat.target, Function) else flat.target
            args, kwargs = map_aggregate(flat.args, node), map_aggregate(flat.kwargs, node)
            new = graph.create_node(flat.op, target, args, kwargs, flat.name)
            new.meta.update(flat.meta)
            made.append(new)
        return graph


def _flat(node: fx.Node, ref: Callable[[Any], Any]) -> FlatNode:
    target = node.target if isinstance(node.target, str) else Function(node.target)
    args, kwargs = map_aggregate(node.args, ref), map_aggregate(node.kwargs, ref)
    return FlatNode(node.op, node.name, target, args, kwargs, dict(node.meta))


def _names(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Names under which the function may be found."""
    module = getattr(function, "__module__", None) or "builtins"
    for attribute in ("__qualname__", "__name__"):
        name = getattr(function, attribute, None)
        if isinstance(name, str):
            yield module, name
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):  # a class method, of an autograd.Function
        yield owner.__module__, f"{owner.__qualname__}.{function.__name__}"
    yield "torch.ops", str(function)
    original = getattr(function, "_torchdynamo_inline", None)
    if original is not None:  # a scripted function took the name of the one it was made from
        yield original.__module__, original.__qualname__


def _lookup(module: str, path: str) -> Any:
    try:
        value: Any = importlib.import_module(module)
        for name in path.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError, ValueError):
        return None
    return value


def _load(module: str, path: str) -> Function:
    return Function(_lookup(module, path))
