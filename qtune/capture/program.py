"""A graph as a list of steps: what runs when a recorded model is called.

Every node has a register. A step computes one node from the registers of its arguments and then
clears the registers that are not needed any more. Modules and parameters are looked up by name in
every run, so that replacing a submodule takes effect at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from qtune.capture.ambient import in_modes
from qtune.capture.branches import Branch
from qtune.capture.failing import name_operator
from qtune.capture.guards import check_training, needs_mode
from qtune.capture.members import attribute_at, module_at
from qtune.errors import CaptureError

Registers = list[Any]
Compute = Callable[[Registers], Any]
OnResult = Callable[[fx.Node, Any], Any]
Given = Callable[[fx.Node], Any]
"""The result of a node that is known already, ``None`` for one to be computed."""


@dataclass(frozen=True, slots=True)
class Step:
    """``compute`` the node, put it into ``register``, clear ``dead`` registers."""

    node: fx.Node
    compute: Compute
    register: int
    dead: tuple[int, ...]


class Program:
    """The compiled form of ``graph`` over the modules of ``root``; takes no part in pickling.

    ``branch``: run this one only. Programs of all branches have the same registers, and
    ``members`` are the nodes that run.
    """

    def __init__(self, graph: fx.Graph, root: nn.Module, branch: Branch | None = None) -> None:
        self._root = root
        everything = list(graph.nodes)
        self._register = {node: index for index, node in enumerate(everything)}
        self.members = set(everything) if branch is None else branch.members(graph)
        nodes = [node for node in everything if node in self.members]
        if branch is None:
            self.inputs = [node for node in nodes if node.op == "placeholder"]
            result = next(node for node in nodes if node.op == "output").args[0]
        else:
            self.inputs, result = branch.placeholders(graph), branch.results(graph)
        self._result: Callable[[Registers], Sequence[Any]] = self._argument(result)
        self._modes = [
            (str(node.args[0].target).split("."), node)
            for node in nodes
            if needs_mode(node) is not None
        ]
        dead = _last_uses(nodes, _nodes_in(result))
        self.steps = [
            Step(node, self._compute(node), self._register[node], self._registers(dead[node]))
            for node in nodes
            if node.op not in ("placeholder", "output")
        ]

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The leaves of the result for the tensors ``inputs``."""
        registers = self.start(inputs)
        for step in self.steps:
            try:
                registers[step.register] = step.compute(registers)
            except Exception as error:
                self.name_operator(error, step.node, registers)
                raise
            for index in step.dead:
                registers[index] = None
        return self._result(registers)

    def name_operator(self, error: Exception, node: fx.Node, registers: Registers) -> None:
        """Say in a note which operator an error came from, and what it got."""
        sources = node.all_input_nodes
        name_operator(error, node, sources, [registers[self._register[of]] for of in sources])

    def check_mode(self) -> None:
        """Raise ``GuardError`` if a guard on a training flag will do so."""
        for path, node in self._modes:
            check_training(attribute_at(self._root, path), *node.args[1:])

    def result(self, registers: Registers) -> Sequence[Any]:
        """The leaves of the result, once all steps ran."""
        return self._result(registers)

    def run_observed(
        self, inputs: Sequence[Any], on_result: OnResult, given: Given | None = None
    ) -> Sequence[Any]:
        """As :meth:`run`, but a node's result becomes what ``on_result(node, result)`` returns.

        A node for which ``given`` has a result is not computed.
        """
        registers = self.start(inputs)
        for node in self.inputs:
            self.show(node, registers, on_result)
        for step in self.steps:
            result = None if given is None else given(step.node)
            if result is None:
                result = step.compute(registers)
            registers[step.register] = on_result(step.node, result)
            for index in step.dead:
                registers[index] = None
        return self._result(registers)

    def stepwise(self, inputs: Sequence[Any]) -> Iterator[tuple[fx.Node, Any]]:
        """Run node by node: each one with its result, as long as somebody asks."""
        registers = self.start(inputs)
        for step in self.steps:
            result = registers[step.register] = step.compute(registers)
            for index in step.dead:
                registers[index] = None
            yield step.node, result

    def show(self, node: fx.Node, registers: Registers, on_result: OnResult) -> None:
        """An input becomes what ``on_result`` returns."""
        index = self._register[node]
        registers[index] = on_result(node, registers[index])

    def start(self, inputs: Sequence[Any], registers: Registers | None = None) -> Registers:
        """Registers with the inputs in place; ``registers`` where another branch ran first."""
        registers = [None] * len(self._register) if registers is None else registers
        for node, value in zip(self.inputs, inputs, strict=True):
            registers[self._register[node]] = value
        return registers

    def _registers(self, nodes: Sequence[fx.Node]) -> tuple[int, ...]:
        return tuple(self._register[node] for node in nodes)

    def _compute(self, node: fx.Node) -> Compute:
        maker = getattr(self, f"_{node.op}", None)
        if maker is None:
            raise CaptureError(f"node {node.name}: unknown kind of node {node.op!r}")
        compute: Compute = in_modes(maker(node), node.meta)
        return compute

    def _get_attr(self, node: fx.Node) -> Compute:
        path = str(node.target).split(".")
        return lambda registers: attribute_at(self._root, path)

    def _call_module(self, node: fx.Node) -> Compute:
        # past a __call__ of the class, whose own calls were recorded
        path, root = str(node.target).split("."), self._root
        if len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs:
            index = self._register[node.args[0]]
            return lambda registers: nn.Module.__call__(module_at(root, path), registers[index])
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        return lambda registers: nn.Module.__call__(
            module_at(root, path), *args(registers), **kwargs(registers)
        )

    def _call_function(self, node: fx.Node) -> Compute:
        function: Any = node.target
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        if not node.kwargs:
            return lambda registers: function(*args(registers))
        return lambda registers: function(*args(registers), **kwargs(registers))

    def _call_method(self, node: fx.Node) -> Compute:
        name = str(node.target)
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)

        def compute(registers: Registers) -> Any:
            tensor, *rest = args(registers)
            return getattr(tensor, name)(*rest, **kwargs(registers))

        def assign(registers: Registers) -> Any:
            tensor, index, value = args(registers)
            tensor[index] = value
            return tensor  # in the graph, x[i] = v is the changed x

        return assign if name == "__setitem__" else compute

    def _argument(self, value: Any) -> Callable[[Registers], Any]:
        """What gives an argument from the registers."""
        if isinstance(value, fx.Node):
            index = self._register[value]
            return lambda registers: registers[index]
        if not _has_nodes(value):
            return lambda registers: value
        if isinstance(value, slice):
            parts = [self._argument(part) for part in (value.start, value.stop, value.step)]
            return lambda registers: slice(*[part(registers) for part in parts])
        if isinstance(value, dict):
            entries = {key: self._argument(item) for key, item in value.items()}
            return lambda registers: {key: item(registers) for key, item in entries.items()}
        return self._sequence(value)

    def _sequence(self, value: Any) -> Callable[[Registers], Any]:
        items = [self._argument(item) for item in value]
        if isinstance(value, list):
            return lambda registers: [item(registers) for item in items]
        if hasattr(value, "_fields"):
            cls: Any = type(value)
            return lambda registers: cls(*[item(registers) for item in items])
        if all(isinstance(item, fx.Node) for item in value):
            indices = [self._register[item] for item in value]
            return lambda registers: tuple([registers[index] for index in indices])
        return lambda registers: tuple([item(registers) for item in items])


def _nodes_in(value: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found


def _has_nodes(value: Any) -> bool:
    return bool(_nodes_in(value))


def _last_uses(
    nodes: Sequence[fx.Node], results: Sequence[fx.Node]
) -> dict[fx.Node, list[fx.Node]]:
    """For each node the nodes (itself included) whose values nobody needs after it."""
    dead: dict[fx.Node, list[fx.Node]] = {node: [] for node in nodes}
    seen: set[fx.Node] = set(results)
    for node in reversed(nodes):
        for value in (*node.all_input_nodes, node):
            if value not in seen:
                seen.add(value)
                dead[node].append(value)
    return dead
