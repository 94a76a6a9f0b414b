"""Several paths through one model: the branches of a recorded graph.

A model that takes another path for other inputs (``task``, a mask or ``None``, training mode) has
one graph with the nodes of all recorded paths; what two paths have in common is in it once. A
branch is one of the paths: which nodes belong to it, its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import fx

from qtune.capture.guards import is_guard
from qtune.capture.interface import Interface

BRANCHES = "branches"
"""Key of ``node.meta``: numbers of the branches whose recording made the node.

Absent in graphs of one branch, and on nodes that were put in later: those belong to every branch
that needs their result.
"""

CALL = "call"
"""Key of ``node.meta``: identity of a call in the model's code.

Calls of two branches, or of two runs of a dynamic block, with the same identity are one operator.
"""

BLOCK = "block"
"""Key of ``node.meta``: path of the innermost dynamic block around a call, and number of the run.
"""


ASIDE = "aside"
"""Key of ``node.meta``: only branches that are ``aside`` run the node, so it decides nothing."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One path. ``inputs``: places of its placeholders among those of the graph, in the order of
    ``interface``. ``first``, ``stop``: its part of the graph's flat output. ``calls``: identities
    (:data:`CALL`) of its calls of functions and methods, in order of execution. ``aside``: nobody
    gave an example of it; prepare recorded it for training.
    """

    number: int
    interface: Interface
    inputs: tuple[int, ...]
    first: int
    stop: int
    calls: tuple[Any, ...] = ()
    aside: bool = False

    def placeholders(self, graph: fx.Graph) -> list[fx.Node]:
        """The inputs in the order of the interface."""
        found = graph.find_nodes(op="placeholder")
        return [found[place] for place in self.inputs]

    def results(self, graph: fx.Graph) -> tuple[Any, ...]:
        """The leaves of the branch's result."""
        (output,) = graph.find_nodes(op="output")
        return tuple(output.args[0][self.first : self.stop])

    def members(self, graph: fx.Graph) -> set[fx.Node]:
        """The nodes that run on this path."""
        nodes = list(graph.nodes)
        wanted = {node for node in nodes if self.number in node.meta.get(BRANCHES, ())}
        wanted.update(value for value in self.results(graph) if isinstance(value, fx.Node))
        wanted.update(self.placeholders(graph))
        for node in reversed(nodes):
            if node in wanted:
                wanted.update(node.all_input_nodes)
        for node in nodes:
            if is_guard(node) and BRANCHES not in node.meta:
                wanted |= _check_on(wanted, node)
        return wanted

    def cut(self, graph: fx.Graph) -> fx.Graph:
        """The branch as a graph of its own, with copies of its nodes."""
        members, own = self.members(graph), fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        inputs = self.placeholders(graph)
        for node in (*inputs, *(n for n in graph.nodes if n in members and n not in inputs)):
            copies[node] = own.node_copy(node, copies.__getitem__)
            copies[node].meta = {k: v for k, v in node.meta.items() if k != BRANCHES}
        results = fx.map_arg(self.results(graph), copies.__getitem__)
        own.output(results).meta["kind"] = "output"
        return own


def _check_on(members: set[fx.Node], guard: fx.Node) -> set[fx.Node]:
    """A guard that was put in later, with what it alone asks for (a size); empty on other paths."""
    found, ahead = {guard}, list(guard.all_input_nodes)
    while ahead:
        node = ahead.pop()
        if node in members or node in found:
            continue
        if BRANCHES in node.meta or node.op == "placeholder":
            return set()
        found.add(node)
        ahead.extend(node.all_input_nodes)
    return found


def slots(node: fx.Node) -> Iterable[tuple[int, int]]:
    """The runs that execute a node at most once: (branch, run of its dynamic block)."""
    run = node.meta[BLOCK][1] if BLOCK in node.meta else 0
    return [(branch, run) for branch in node.meta.get(BRANCHES, (0,))]


def most_calls(nodes: Iterable[fx.Node]) -> int:
    """How often at most one run executes one of ``nodes``."""
    counts: dict[tuple[int, int], int] = {}
    for node in nodes:
        for slot in slots(node):
            counts[slot] = counts.get(slot, 0) + 1
    return max(counts.values(), default=0)


def is_aside(node: fx.Node) -> bool:
    """Whether only branches run the node that have no say in fusion, dtypes and scales."""
    return ASIDE in node.meta


def users_that_count(node: fx.Node) -> list[fx.Node]:
    """The users of a node that have a say."""
    return [user for user in node.users if not is_aside(user)]
