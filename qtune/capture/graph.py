"""A recorded model: the modules of the float model and the graph of their calls."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from qtune.capture.flat import FlatGraph
from qtune.capture.guards import CaptureReport
from qtune.capture.inputs import as_inputs
from qtune.capture.interface import Interface
from qtune.capture.members import Members
from qtune.capture.program import OnResult, Program
from qtune.capture.structure import Spec, unflatten


class GraphModel(Members):
    """Runs ``graph`` over the submodules, parameters and buffers of ``modules``, which it shares.

    Names are those of ``modules``: the keys of ``state_dict()`` are the float model's. Constants
    are non-persistent buffers. ``graph`` may be edited; call :meth:`recompile` afterwards.
    Deepcopy, pickle, ``torch.save`` of the whole, ``to`` and ``train`` work; tied parameters stay
    tied. The hooks of the root module were recorded as the calls they made; hooks on submodules
    that are called in the graph run.

    Members of the float model may have names of attributes of this class: see :class:`Members`.

    ``call_method`` nodes named ``__setitem__`` give the changed tensor, unlike torch's method.
    """

    interface: Interface
    report: CaptureReport
    _graph: fx.Graph
    _program: Program | None

    def __init__(
        self,
        modules: nn.Module,
        graph: fx.Graph,
        in_spec: Spec | None,
        out_spec: Spec,
        signature: inspect.Signature,
        constants: Mapping[int, Any] | None = None,
        report: CaptureReport | None = None,
    ) -> None:
        super().__init__()
        # Filled past add_module: a submodule may have the name of an attribute of this class.
        self._modules.update(modules._modules)
        self._parameters.update(modules._parameters)
        self._buffers.update(modules._buffers)
        self._non_persistent_buffers_set.update(modules._non_persistent_buffers_set)
        self.training = modules.training
        self._graph = graph
        self._program = None
        self.interface = Interface(in_spec, out_spec, signature, dict(constants or {}))
        self.report = report or CaptureReport()

    @property
    def graph(self) -> fx.Graph:
        """The graph. ``output`` is a flat tuple of the result's leaves."""
        return self._graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._program = None

    @property
    def in_spec(self) -> Spec | None:
        """Structure of the arguments by name."""
        return self.interface.in_spec

    @property
    def out_spec(self) -> Spec:
        """Structure of the result."""
        return self.interface.out_spec

    @property
    def signature(self) -> inspect.Signature:
        """Signature of the float model's forward."""
        return self.interface.signature

    @property
    def constants(self) -> Mapping[int, Any]:
        """The recorded inputs that are no tensors, by their place among the leaves."""
        return self.interface.constants

    def recompile(self) -> None:
        """Take edits of ``graph`` into account."""
        self._program = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph on the arguments of the float model's forward.

        Raises ``GuardError`` for inputs on which the float model would take another path.
        """
        inputs = self.interface.inputs(args, kwargs)
        return unflatten(self._compiled().run(inputs), self.interface.out_spec)

    def run_nodes(self, inputs: Any, on_result: OnResult) -> Any:
        """Run on ``inputs`` (see ``as_inputs``) and show every node's result to ``on_result``.

        ``on_result(node, result)`` is called for inputs and calls in order of execution, and
        returns the value to go on with: the result itself, or another one in its place.
        A result may be changed in place by later nodes; clone what is to be kept.
        """
        call = as_inputs(inputs)
        leaves = self.interface.inputs(call.args, call.kwargs)
        results = self._compiled().run_observed(leaves, on_result)
        return unflatten(results, self.interface.out_spec)

    def add_constant(self, name: str, value: Tensor) -> None:
        """Keep a constant of the graph as a buffer that is no part of ``state_dict``."""
        self._buffers[name] = value
        self._non_persistent_buffers_set.add(name)

    def _compiled(self) -> Program:
        if self._program is None:
            self._program = Program(self._graph, self)
        return self._program

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_program"] = None
        state["_graph"] = FlatGraph.of(self._graph)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._graph = state["_graph"].graph()
