"""The graph of the float model as ``prepare`` recorded it, to be run over the float model again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn

from qtune.capture.flat import FlatGraph
from qtune.capture.graph import GraphModel
from qtune.capture.interface import Interface

_PLACE = "float_place"
"""Key of ``node.meta``: place of a node in the recorded graph."""


@dataclass(frozen=True, slots=True)
class FloatGraph:
    """``names``: place of a node -> name of the operator that ``prepare`` made of it.

    Comparisons with the float model need its values by these names; recording it again takes a
    forward and holds all its activations.
    """

    graph: FlatGraph
    interface: Interface
    names: Mapping[int, str]

    def __deepcopy__(self, memo: dict[int, Any]) -> FloatGraph:
        return self  # never changed

    @classmethod
    def of(cls, model: GraphModel) -> FloatGraph | None:
        """The graph of ``model``, whose nodes are marked for :meth:`named`.

        ``None`` for a graph of several branches or with constants that nothing but it holds.
        """
        if model.graph_branches or model.report.constants:
            return None
        interface = Interface(model.in_spec, model.out_spec, model.signature, model.constants)
        found = cls(FlatGraph.of(model.graph), interface, {})
        for place, node in enumerate(model.graph.nodes):
            node.meta[_PLACE] = place
        return found

    def named(self, graph: fx.Graph) -> FloatGraph:
        """With the names that the marked nodes have by now; takes the marks off."""
        names = {}
        for node in graph.nodes:
            place = node.meta.pop(_PLACE, None)
            if place is not None and "name" in node.meta:
                names[place] = str(node.meta["name"])
        return replace(self, names=names)

    def over(self, model: nn.Module) -> GraphModel:
        """The graph over the modules of ``model``, which must be built like the recorded one."""
        interface = self.interface
        return GraphModel(
            model,
            self.graph.graph(),
            interface.in_spec,
            interface.out_spec,
            interface.signature,
            interface.constants,
        )
