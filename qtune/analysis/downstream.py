"""Run a graph once, and for chosen operators run only what comes after them again and again.

An ablation changes one operator and asks what the outputs become. Everything before the operator
is the same in every variant: its values are taken from one run in the background. The memory needed
on top of a forward is that of the values alive at one place of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs
from qtune.capture.program import Program
from qtune.capture.structure import unflatten
from qtune.profiler.undisturbed import same_randomness

Resume = Callable[[], Any]
"""Runs the model from an operator on, the operator included, and returns the outputs."""
Visit = Callable[[fx.Node, Resume], None]


def can_resume(model: GraphModel, inputs: Inputs) -> bool:
    """Whether parts of the graph may run again on kept values: no node changes one in place."""
    versions: dict[fx.Node, tuple[Tensor, int]] = {}
    changed = False

    def check(node: fx.Node, result: Any) -> Any:
        nonlocal changed
        for source in node.all_input_nodes:
            tensor, version = versions.get(source, (None, 0))
            changed = changed or (tensor is not None and tensor._version != version)
        if isinstance(result, Tensor):
            versions[node] = (result, result._version)
        return result

    model.run_nodes(inputs, check)
    return not changed


def sweep(model: GraphModel, inputs: Inputs, wanted: set[fx.Node], visit: Visit) -> None:
    """Run ``model`` once and call ``visit(node, resume)`` at each of the ``wanted`` nodes.

    ``resume()`` may be called any number of times before ``visit`` returns, each time with the
    random state that the node met. Needs :func:`can_resume`.
    """
    model.run_nodes(inputs, _Sweep(model, wanted, visit))


class _Sweep:
    def __init__(self, model: GraphModel, wanted: set[fx.Node], visit: Visit) -> None:
        self.model = model
        self.wanted = wanted
        self.visit = visit
        self.nodes = list(model.graph.nodes)
        self.place = {node: place for place, node in enumerate(self.nodes)}
        self.last_use = {
            node: max((self.place[user] for user in node.users), default=-1) for node in self.nodes
        }
        self.live: dict[fx.Node, Any] = {}
        self.random = torch.get_rng_state()

    def __call__(self, node: fx.Node, result: Any) -> Any:
        if node in self.wanted:
            self._visit(node)
        self.live[node] = result
        here = self.place[node]
        for dead in [kept for kept in self.live if self.last_use[kept] <= here]:
            del self.live[dead]
        self.random = torch.get_rng_state()
        return result

    def _visit(self, node: fx.Node) -> None:
        sources = list(self.live)
        program = Program(_rest(self.nodes[self.place[node] :], sources), self.model)
        values = [self.live[source] for source in sources]

        def resume() -> Any:
            with same_randomness():
                torch.set_rng_state(self.random)
                return unflatten(program.run(values), self.model.out_spec)

        self.visit(node, resume)


def _rest(nodes: list[fx.Node], sources: list[fx.Node]) -> fx.Graph:
    """``nodes`` (the end of a graph) as a graph of their own, with ``sources`` as its inputs."""
    graph = fx.Graph()
    copies = {source: graph.placeholder(source.name) for source in sources}
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda value: copies[value])
    return graph
