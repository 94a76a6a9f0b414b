"""What nodes of a graph hold that no input's values decide: parameters, buffers, sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg

_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)


def depends_on_data(value: Any) -> bool:
    """Whether the values of inputs decide a node; the sizes of inputs don't count."""
    waiting, seen = [value], set()
    while waiting:
        node = waiting.pop()
        if node in seen or not isinstance(node, fx.Node):
            continue
        seen.add(node)
        if node.op == "placeholder":
            return True
        if node.meta.get("kind") != "size":
            waiting += node.all_input_nodes
    return False


def example_value(model: nn.Module, node: fx.Node) -> Any:
    """What a node holds for the example's sizes; ``None`` where data decides it or it fails."""
    if depends_on_data(node):
        return None
    try:
        with torch.no_grad():
            return _value(model, node)
    except _FAILURES:
        return None


def _value(model: nn.Module, node: fx.Node) -> Any:
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(model)
    if node.meta.get("kind") == "size" and node.target == "size":
        tensor, dim = node.args
        return tensor.meta["shape"][dim]  # type: ignore[union-attr]
    args = map_arg(node.args, lambda source: _value(model, source))
    kwargs = map_arg(node.kwargs, lambda source: _value(model, source))
    return _function(model, node)(*args, **kwargs)


def _function(model: nn.Module, node: fx.Node) -> Callable[..., Any]:
    if node.op == "call_function":
        return node.target  # type: ignore[return-value]
    if node.op == "call_method":
        return lambda value, *args, **kwargs: getattr(value, str(node.target))(*args, **kwargs)
    op: Any = model.get_submodule(str(node.target))
    return lambda *args, **kwargs: op.compute(op.fill(args), {**op.attrs, **kwargs})
