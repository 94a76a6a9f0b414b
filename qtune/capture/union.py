"""Joins recordings of one model, taken on several examples, into one graph with branches.

Nodes of two recordings are one node where they are the same call on the same values. What follows a
guard that came out differently stays apart; there, calls of the same line of the model get the same
identity (:data:`~qtune.capture.branches.CALL`), so that prepare makes one operator of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.capture.ambient import AUTOCAST, GRAD
from qtune.capture.branches import BLOCK, BRANCHES, Branch
from qtune.capture.calls import AFTER
from qtune.capture.graph import GraphModel
from qtune.capture.guards import CaptureReport, is_guard
from qtune.capture.handlers import HOOKED
from qtune.capture.identity import call_order, name_calls, target_name
from qtune.errors import CaptureError

_MATTERS = ("scope", "kind", AUTOCAST, GRAD, HOOKED)
"""What of a node's meta makes two calls different ones."""


def join(model: nn.Module, recordings: Sequence[GraphModel]) -> GraphModel:
    """One recorded model with a branch for every different path among ``recordings``.

    A recording that takes the path of an earlier one adds nothing. Raises ``CaptureError`` where
    two differ and no guard tells which of them a call takes.
    """
    if len(recordings) == 1:
        return recordings[0]
    union = _Union()
    for number, recording in enumerate(recordings):
        union.add(number, recording)
    if len(union.paths) == 1:
        return recordings[0]
    graph, branches = union.build()
    reports = [recording.report for recording in union.paths.values()]
    first = recordings[0]
    joined = GraphModel(
        model,
        graph,
        first.in_spec,
        first.out_spec,
        first.signature,
        report=CaptureReport(
            constants=tuple(union.infos.values()),
            guards=tuple(dict.fromkeys(guard for r in reports for guard in r.guards)),
            notes=tuple(dict.fromkeys(note for r in reports for note in r.notes)),
        ),
        branches=branches,
    )
    for name, value in union.constants.items():
        joined.add_constant(name, value)
    return joined


class _Union:
    def __init__(self) -> None:
        self.paths: dict[int, GraphModel] = {}
        self.constants: dict[str, Tensor] = {}
        self.infos: dict[str, Any] = {}
        self._graph = fx.Graph()
        self._nodes: dict[Any, fx.Node] = {}
        self._order: dict[int, list[fx.Node]] = {}
        self._after: dict[fx.Node, set[fx.Node]] = {}
        self._outputs: dict[int, tuple[Any, ...]] = {}
        self._inputs: dict[int, list[fx.Node]] = {}

    def add(self, number: int, recording: GraphModel) -> None:
        """Take a recording's nodes in, unless its path is known."""
        if any(_same_path(known, recording) for known in self.paths.values()):
            return
        for other, known in self.paths.items():
            _refuse_indistinct((other, known), (number, recording))
        self.paths[number] = recording
        renamed = self._keep_constants(recording)
        copies: dict[fx.Node, fx.Node] = {}
        seen: Counter[Any] = Counter()
        for node in recording.graph.nodes:
            if node.op == "output":
                self._outputs[number] = fx.map_arg(node.args[0], copies.__getitem__)
                continue
            target = renamed.get(str(node.target), node.target)
            copies[node] = self._take(node, target, copies, seen, number)
        self._order[number] = list(dict.fromkeys(copies.values()))
        self._inputs[number] = [copies[n] for n in recording.graph.find_nodes(op="placeholder")]
        names = {node.name: copy for node, copy in copies.items()}
        for node, copy in copies.items():
            earlier = {names[name] for name in node.meta.get(AFTER, ()) if name in names}
            self._after.setdefault(copy, set()).update(earlier - {copy})

    def build(self) -> tuple[fx.Graph, tuple[Branch, ...]]:
        """The graph in an order that is every branch's own, and the branches."""
        _name_calls(self._order)
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self._sorted():
            copies[node] = graph.node_copy(node, copies.__getitem__)
        leaves: list[Any] = []
        branches = []
        places = [n for n in copies if n.op == "placeholder"]
        for number, recording in self.paths.items():
            own = fx.map_arg(self._outputs[number], copies.__getitem__)
            inputs = tuple(places.index(node) for node in self._inputs[number])
            first, stop = len(leaves), len(leaves) + len(own)
            calls = call_order(self._order[number])
            branches.append(Branch(number, recording.interface, inputs, first, stop, calls))
            leaves.extend(own)
        graph.output(tuple(leaves)).meta["kind"] = "output"
        return graph, tuple(branches)

    def _take(
        self,
        node: fx.Node,
        target: Any,
        copies: dict[fx.Node, fx.Node],
        seen: Counter[Any],
        number: int,
    ) -> fx.Node:
        args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        key = (node.op, target, _key(_compared(node, args)), _key(kwargs), _traits(node))
        seen[key] += 1
        found = self._nodes.get((key, seen[key]))
        if found is None:
            found = self._graph.create_node(node.op, target, args, kwargs, node.name)
            found.meta = {k: v for k, v in node.meta.items() if k != AFTER}
            self._nodes[key, seen[key]] = found
        found.meta[BRANCHES] = (*found.meta.get(BRANCHES, ()), number)
        return found

    def _keep_constants(self, recording: GraphModel) -> dict[str, str]:
        """Equal constants are one; the recording's names -> those in the union."""
        renamed: dict[str, str] = {}
        for info in recording.report.constants:
            value = recording.get_buffer(info.name)
            known = (name for name, other in self.constants.items() if _equal(value, other))
            name = next(known, None)
            if name is None:
                name, count = info.name, len(self.constants)
                members = {**recording._modules, **recording._parameters, **recording._buffers}
                while name in self.constants or (name != info.name and name in members):
                    name, count = f"_constant_{count}", count + 1
                self.constants[name] = value
                self.infos[name] = type(info)(name, info.shape, info.dtype, info.source)
            renamed[info.name] = name
        return renamed

    def _sorted(self) -> Iterator[fx.Node]:
        """Inputs first, then every node after its operands and after what must run before it."""
        inputs = self._graph.find_nodes(op="placeholder")
        yield from inputs
        done, open_ = set(inputs), set()
        for node in (node for order in self._order.values() for node in order):
            stack = [node]
            while stack:
                top = stack[-1]
                if top in done:
                    stack.pop()
                    continue
                waiting = [n for n in (*top.all_input_nodes, *self._after[top]) if n not in done]
                if not waiting:
                    done.add(stack.pop())
                    yield top
                elif top in open_:
                    raise CaptureError(
                        f"{top.meta.get('source')}: two examples read and change a tensor in place "
                        "in different orders; compute a new tensor in place of changing it"
                    )
                else:
                    open_.add(top)
                    stack.extend(sorted(waiting, key=lambda n: n.name, reverse=True))


def _name_calls(order: dict[int, list[fx.Node]]) -> None:
    """Give calls their identity: of nodes that stay apart, the n-th of one line in each run."""
    nodes = list(dict.fromkeys(node for own in order.values() for node in own))
    name_calls([node for node in nodes if len(node.meta[BRANCHES]) > 1])
    name_calls(nodes)


def _same_path(known: GraphModel, new: GraphModel) -> bool:
    """Whether every call that ``new`` was recorded for takes the path of ``known``."""
    if known.in_spec != new.in_spec or _key(known.constants) != _key(new.constants):
        return False
    conditions = [[_condition(n) for n in r.graph.nodes if is_guard(n)] for r in (known, new)]
    calls = [[_what(n) for n in r.graph.nodes if n.meta.get("kind") == "op"] for r in (known, new)]
    return conditions[0] == conditions[1] and calls[0] == calls[1]


def _refuse_indistinct(known: tuple[int, GraphModel], new: tuple[int, GraphModel]) -> None:
    """Raise if nothing tells two different paths apart."""
    (first, one), (second, two) = known, new
    if one.in_spec != two.in_spec or _key(one.constants) != _key(two.constants):
        return
    ours, theirs = ({_condition(n) for n in r.graph.nodes if is_guard(n)} for r in (one, two))
    if not ours - theirs or not theirs - ours:
        raise CaptureError(
            f"examples {first} and {second} take different paths through the model, but nothing "
            "that recording can see decides which (state outside of the inputs and parameters, or "
            "random numbers?). Make what decides an argument of forward"
        )


def _condition(node: fx.Node) -> Any:
    return (node.meta.get("scope"), node.args[-2], node.args[-1])


def _what(node: fx.Node) -> Any:
    return (node.op, target_name(node.target), node.meta.get("scope"))


def _compared(node: fx.Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The text of a guard names nodes, which other recordings call differently."""
    return args[:-2] if is_guard(node) else args


def _traits(node: fx.Node) -> Any:
    block = node.meta.get(BLOCK)
    return (*(_key(node.meta.get(name)) for name in _MATTERS), _key(node.meta.get("dtype")), block)


def _key(value: Any) -> Any:
    """A hashable stand-in that is equal for equal arguments only."""
    if isinstance(value, fx.Node):
        return ("node", id(value))
    if isinstance(value, slice):
        return ("slice", _key((value.start, value.stop, value.step)))
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *map(_key, value))
    if hasattr(value, "items"):
        return ("dict", *((key, _key(item)) for key, item in value.items()))
    if isinstance(value, float):
        return ("float", repr(value))
    try:
        hash(value)
    except TypeError:
        return ("id", id(value))
    return (type(value), value)


def _equal(a: Tensor, b: Tensor) -> bool:
    same_kind = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
    return same_kind and torch.equal(a, b)
