"""A recorded model: the modules of the float model and the graph of their calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, fx, nn

from qtune.capture.branches import Branch
from qtune.capture.flat import FlatGraph
from qtune.capture.guards import THIS_CALL, CaptureReport
from qtune.capture.inputs import as_inputs, spelled
from qtune.capture.interface import Interface
from qtune.capture.members import Members
from qtune.capture.program import Given, OnResult, Program
from qtune.capture.restore import restored
from qtune.capture.runner import Decided, Runner, no_branch
from qtune.capture.structure import Spec, unflatten
from qtune.capture.view import view_of
from qtune.errors import CaptureError, GuardError

if TYPE_CHECKING:
    from qtune.capture.growth import Growth


Watch = Callable[[], AbstractContextManager[OnResult]]
"""Gives what one call shows its results to (see ``GraphModel.run_nodes``), and ends with it."""

_OF_ONE_BRANCH = frozenset({"interface", "in_spec", "out_spec", "constants"})


class GraphModel(Members):
    """Runs ``graph`` over the submodules, parameters and buffers of ``modules``, which it shares.

    Names are those of ``modules``: the keys of ``state_dict()`` are the float model's. Constants
    are non-persistent buffers. ``graph`` may be edited; call :meth:`recompile` afterwards.
    Deepcopy, pickle, ``torch.save`` of the whole, ``to`` and ``train`` work; tied parameters stay
    tied. The hooks of the root module were recorded as the calls they made; hooks on submodules
    that are called in the graph run.

    A graph of several ``graph_branches`` runs the one that a call fits (see
    :mod:`qtune.capture.branches`); ``in_spec``, ``out_spec`` and ``constants`` are those of one
    branch, which :meth:`select_branch` gives (``is_picked``: it was given by that).

    Members of the float model may have names of attributes of this class: see :class:`Members`.

    ``call_method`` nodes named ``__setitem__`` give the changed tensor, unlike torch's method.
    """

    report: CaptureReport
    graph_branches: tuple[Branch, ...]
    call_order: tuple[Any, ...]
    is_picked: bool
    why_one_mode: str = ""
    """Why prepare recorded the model in one mode only, where forward reads ``training``."""
    _interface: Interface
    _graph: fx.Graph
    _programs: dict[int, Program]
    _growth: Growth | None
    _watch: Watch | None = None

    def __init__(
        self,
        modules: nn.Module,
        graph: fx.Graph,
        in_spec: Spec | None,
        out_spec: Spec,
        signature: inspect.Signature,
        constants: Mapping[int, Any] | None = None,
        report: CaptureReport | None = None,
        branches: tuple[Branch, ...] = (),
    ) -> None:
        super().__init__()
        # Filled past add_module: a submodule may have the name of an attribute of this class.
        self._modules.update(modules._modules)
        self._parameters.update(modules._parameters)
        self._buffers.update(modules._buffers)
        self._non_persistent_buffers_set.update(modules._non_persistent_buffers_set)
        self.training = modules.training
        self._graph = graph
        self._programs = {}
        self._growth = None
        self.graph_branches = branches
        self.call_order = ()
        self.is_picked = False
        self._interface = Interface(in_spec, out_spec, signature, dict(constants or {}))
        self.report = report or CaptureReport()

    @property
    def graph(self) -> fx.Graph:
        """The graph. ``output`` is a flat tuple of the result's leaves."""
        return self._graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        self._graph = graph
        self.recompile()

    @property
    def interface(self) -> Interface:
        """What a call's arguments and result look like. ``CaptureError`` if branches differ.

        A branch that prepare recorded by itself does not count.
        """
        given = [branch for branch in self.graph_branches if not branch.aside]
        if len(given) == 1:
            return given[0].interface
        if self.graph_branches:
            raise CaptureError(
                f"this model has {len(self.graph_branches)} branches, each with inputs and outputs "
                "of its own; model.select_branch(inputs) gives the one that the inputs take"
            )
        return self._interface

    def __dir__(self) -> list[str]:
        """Without what a graph of several branches lacks: torch.jit.trace reads all of it."""
        names = super().__dir__()  # type: ignore[no-untyped-call]
        hidden = _OF_ONE_BRANCH if self.graph_branches else frozenset()
        return [name for name in names if name not in hidden]

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
        return self._interface.signature

    @property
    def constants(self) -> Mapping[int, Any]:
        """The recorded inputs that are no tensors, by their place among the leaves."""
        return self.interface.constants

    def recompile(self) -> None:
        """Take edits of ``graph`` into account."""
        self._programs = {}
        self._growth = None  # what was edited is not the float model any more

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph on the arguments of the float model's forward.

        Inputs on which the float model would take another path are recorded too, where ``capture``
        was not told otherwise and the float model is still there: the graph gets another branch.
        Else raises ``GuardError``.
        """
        if self._growth is None:
            return self._run(args, kwargs)
        attempt = self._growth.watch(self, args, kwargs)
        try:
            return self._run(args, kwargs)
        except GuardError as error:
            if not attempt.undo():
                raise
            self._take_over(self._growth.another(error, args, kwargs, self.training))
        return self._run(args, kwargs)

    def run_nodes(self, inputs: Any, on_result: OnResult, given: Given | None = None) -> Any:
        """Run on ``inputs`` (see ``as_inputs``) and show every node's result to ``on_result``.

        ``on_result(node, result)`` is called for inputs and calls in order of execution, and
        returns the value to go on with: the result itself, or another one in its place.
        A result may be changed in place by later nodes; clone what is to be kept. A node for which
        ``given(node)`` has a result is not computed (graphs of one path only).
        """
        call = as_inputs(inputs)
        if given is None:
            return self._run(call.args, call.kwargs, on_result)
        leaves = self.interface.inputs(call.args, call.kwargs)
        results = self._compiled().run_observed(leaves, on_result, given)
        return unflatten(results, self.out_spec)

    def stepwise(self, inputs: Any) -> Iterator[tuple[fx.Node, Any]]:
        """Run a graph of one path node by node, as long as somebody asks for the next result."""
        call = as_inputs(inputs)
        return self._compiled().stepwise(self.interface.inputs(call.args, call.kwargs))

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """Every call in the block shows its results as :meth:`run_nodes` does."""
        before = self._watch
        self._watch = watch
        try:
            yield
        finally:
            self._watch = before

    def branch_for(self, inputs: Any) -> Branch | None:
        """The branch that ``inputs`` (see ``as_inputs``) take; ``None`` where there is only one.

        Runs the model up to where that is decided, without gradients, in the mode that ``inputs``
        name or its own; buffers, random state and flags are left as they were. Raises
        ``GuardError`` if there is none.
        """
        if not self.graph_branches:
            return None
        call = as_inputs(inputs)
        candidates, failures = self._candidates(call.args, call.kwargs)
        if len(candidates) == 1:
            return candidates[0][0]
        try:
            with self._looking():
                if call.training is not None:
                    self.train(call.training)
                return Runner(candidates, failures, only_decide=True).run()[0]
        except Decided as decided:
            return decided.branch

    def select_branch(self, inputs: Any) -> Self:
        """The model of the one branch that ``inputs`` take, over the same modules.

        It holds the operators of that branch only. The model itself where it has one path.
        """
        branch = self.branch_for(inputs)
        if branch is None:
            return self
        return view_of(self, branch)

    def add_constant(self, name: str, value: Tensor) -> None:
        """Keep a constant of the graph as a buffer that is no part of ``state_dict``."""
        self._buffers[name] = value
        self._non_persistent_buffers_set.add(name)

    def _run(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], on_result: OnResult | None = None
    ) -> Any:
        try:
            if on_result is not None or self._watch is None:
                return self._run_branch(args, kwargs, on_result)
            with self._watch() as shown:
                return self._run_branch(args, kwargs, shown)
        except GuardError as error:
            raise self._told(error, args, kwargs) from error.__cause__

    def _run_branch(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], on_result: OnResult | None
    ) -> Any:
        if not self.graph_branches:
            interface = self._interface
            results = _results(self._compiled(), interface.inputs(args, kwargs), on_result)
            return unflatten(results, interface.out_spec)
        candidates, failures = self._candidates(args, kwargs)
        if len(candidates) == 1:
            branch, program, inputs = candidates[0]
            try:
                results = _results(program, inputs, on_result)
            except GuardError as error:
                raise no_branch({**failures, branch.number: str(error)}) from None
        else:
            branch, results = Runner(candidates, failures, on_result).run()
        return unflatten(results, branch.interface.out_spec)

    def _told(self, error: GuardError, args: Any, kwargs: Mapping[str, Any]) -> GuardError:
        """The error with the call that met it, and why there is no branch for this mode."""
        text = str(error)
        if THIS_CALL not in text:
            return error
        reason = f". prepare did not do so by itself: {self.why_one_mode}"
        call = spelled(self.signature, args, kwargs)
        return GuardError(text.replace(THIS_CALL, call) + (reason if self.why_one_mode else ""))

    def _candidates(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[tuple[Branch, Program, list[Any]]], dict[int, str]]:
        """The branches that the arguments allow, and why the others are out."""
        found: list[tuple[Branch, Program, list[Any]]] = []
        failures: dict[int, str] = {}
        for branch in self.graph_branches:
            program = self._compiled(branch)
            try:
                inputs = branch.interface.inputs(args, kwargs)
                program.check_mode()
            except GuardError as error:
                failures[branch.number] = str(error)
            else:
                found.append((branch, program, inputs))
        return found, failures

    def _take_over(self, other: GraphModel) -> None:
        """Become ``other``, a recording of the same model."""
        self._graph, self._programs = other._graph, {}
        self.graph_branches, self.report = other.graph_branches, other.report
        for constants in other.report.constants:
            self.add_constant(constants.name, other.get_buffer(constants.name))

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """A run in the block leaves nothing behind."""
        with restored(self), torch.no_grad():
            yield

    def _compiled(self, branch: Branch | None = None) -> Program:
        key = -1 if branch is None else branch.number
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = Program(self._graph, self, branch)
        return program

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_programs"] = {}
        state["_growth"] = None
        state.pop("_watch", None)
        state["_graph"] = FlatGraph.of(self._graph)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._graph = state["_graph"].graph()


def _results(program: Program, inputs: Sequence[Any], on_result: OnResult | None) -> Sequence[Any]:
    return program.run(inputs) if on_result is None else program.run_observed(inputs, on_result)
