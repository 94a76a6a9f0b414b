"""What the operators of a running graph get, also where one of them writes to what it gets.

A later use of a tensor that was changed in place takes the node that changed it, so every node
stands for one value: the one that it gave.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn
from torch.fx.node import map_arg

from qtune.capture.graph import GraphModel
from qtune.nn.qat.op import QATOp
from qtune.profiler.record import copied

_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul")
) | {operator.iand, operator.ior, operator.ixor, operator.setitem}


class LiveValues:
    """Values that operators ahead still take. Copies only those that somebody writes to."""

    def __init__(self, model: GraphModel) -> None:
        nodes = list(model.graph.nodes)
        self._writers = {node for node in nodes if may_write(model, node)}
        self._at_risk = {source for node in self._writers for source in node.all_input_nodes}
        order = {node: place for place, node in enumerate(nodes)}
        self._last: dict[fx.Node, list[fx.Node]] = {}
        for node in nodes:
            end = max(node.users, key=order.__getitem__, default=node)
            self._last.setdefault(end, []).append(node)
        self._now: dict[fx.Node, Any] = {}

    def operands(self, node: fx.Node) -> Any:
        """The positional arguments of ``node``, as they were before it ran."""
        return map_arg(node.args, self._now.__getitem__)

    def value(self, node: fx.Node) -> Any:
        """The value of a node that some operator ahead takes."""
        return self._now[node]

    def take(self, node: fx.Node, result: Any) -> None:
        """``node`` ran; values that nobody takes any more are let go."""
        self._now[node] = copied(result) if node in self._at_risk else result
        for dead in self._last.get(node, ()):
            self._now.pop(dead, None)


def may_write(model: GraphModel, node: fx.Node) -> bool:
    """Whether a call may change its operands in place.

    Operators of prepared models never do, unless the user hung a hook on them. What is neither
    torch's nor Python's own may.
    """
    if node.op == "call_module":
        return _module_may_write(model.get_submodule(str(node.target)))
    if node.op == "call_method":
        name = str(node.target)
        return name.endswith("_") and (not name.endswith("__") or name[2] == "i" or "set" in name)
    if node.op != "call_function":
        return False
    function: Any = node.target
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", "") or ""
    if function in _IN_PLACE or (name.endswith("_") and not name.endswith("__")):
        return True
    asked = "out" in node.kwargs or node.kwargs.get("inplace") or True in node.args[1:]
    known: bool = module.startswith(("torch", "_operator", "builtins", "math", "qtune"))
    return bool(asked) or not known


def _module_may_write(module: nn.Module) -> bool:
    hooks: Any = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    known = isinstance(module, QATOp) or type(module).__module__.startswith(("torch.", "qtune."))
    return bool(hooks) or not known or bool(getattr(module, "inplace", False))
