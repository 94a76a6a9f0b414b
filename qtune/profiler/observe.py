"""Run any model of the chain once and keep the result of every operator, as values.

The operators of all stages have the same names, so comparing two stages is a join on names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs
from qtune.capture.program import Given
from qtune.capture.structure import flatten, unflatten
from qtune.errors import AnalysisError, kind_of
from qtune.hbir.module import HbirModule
from qtune.nn.eager import eager_facts
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat.op import QATOp
from qtune.prepare.rundir import run_files_in
from qtune.profiler.live_values import LiveValues
from qtune.profiler.observe_hbir import stream_hbir
from qtune.profiler.observe_hooked import stream_hooked
from qtune.profiler.op_results import grid_of as grid_of
from qtune.profiler.op_results import is_operator as is_operator
from qtune.profiler.op_results import named_results as named_results
from qtune.profiler.op_results import numbered_results as numbered_results
from qtune.profiler.op_results import real_numbers as real_numbers
from qtune.profiler.op_results import type_name as type_name
from qtune.profiler.record import Kept, OnRecord
from qtune.profiler.record import Observation as Observation
from qtune.profiler.record import OpRecord as OpRecord
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.deploy import is_converted as holds_converted
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.scope import forward_scope

Model = nn.Module | HbirModule
Replace = Callable[[fx.Node, str, Any], Any]


def is_prepared(model: Model) -> bool:
    """Whether ``model`` came from ``prepare``."""
    if isinstance(model, PreparedModel):
        return True  # also without a single operator
    return isinstance(model, nn.Module) and any(isinstance(m, QATOp) for m in model.modules())


def is_converted(model: object) -> bool:
    """Whether ``model`` came from ``convert`` and is still a module of Python."""
    return not isinstance(model, torch.jit.ScriptModule) and holds_converted(model)


def run_model(model: Model, inputs: Inputs) -> Any:
    """The model's outputs, without gradients; its modes stay as they are."""
    inputs = own_inputs(inputs)
    if isinstance(model, HbirModule):
        return model[0](*inputs.args, **inputs.kwargs)
    with torch.no_grad():
        return model(*inputs.args, **inputs.kwargs)


def own_inputs(inputs: Inputs) -> Inputs:
    """The call with tensors of its own: a model may write to what it gets."""
    leaves, spec = flatten((inputs.args, dict(inputs.kwargs)))
    fresh = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = unflatten(fresh, spec)
    call = Inputs(*args, **kwargs)
    call.training = inputs.training
    return call


def float_twin(model: nn.Module, inputs: Inputs) -> nn.Module:
    """A prepared copy of a float module that computes in float, under the names of all stages."""
    with run_files_in(None):  # a look at a model leaves no files
        twin: nn.Module = prepare(model, inputs)
    set_fake_quantize(twin.train(model.training), FakeQuantState._FLOAT)
    return twin


def observe(model: Model, inputs: Inputs, *, keep_inputs: bool = False) -> Observation:
    """Run ``model`` once and return what every operator computed, as values in memory.

    A float module is seen through a prepared copy of itself (:func:`float_twin`).
    """
    kept = Kept()
    return Observation(stream(model, inputs, kept.note, keep_inputs=keep_inputs), kept)


def stream(model: Model, inputs: Inputs, note: OnRecord, *, keep_inputs: bool = True) -> Any:
    """As :func:`observe`, but each record goes to ``note`` when it is there; return the outputs.

    Nothing is kept beyond what operators ahead need.
    """
    if isinstance(model, HbirModule):
        return stream_hbir(model, inputs, note, keep_inputs=keep_inputs)
    if is_converted(model):
        if isinstance(model, GraphModel):
            return stream_graph(model, inputs, note, keep_inputs=keep_inputs)
        return stream_hooked(model, own_inputs(inputs), note, keep_inputs=keep_inputs)
    if not is_prepared(model):
        model = float_twin(model, inputs)
    graph = require_torch(model, "observe")
    return stream_graph(graph, inputs, note, keep_inputs=keep_inputs)


def stream_graph(
    model: Any,
    inputs: Inputs,
    note: OnRecord,
    *,
    keep_inputs: bool = True,
    replace: Replace | None = None,
    given: Given | None = None,
) -> Any:
    """Run a prepared or converted model once; as :func:`stream`.

    ``replace(node, name, result)`` may give another result for an operator to go on with. An
    operator for which ``given(node)`` has a result is not computed.
    """
    recorder = _Recorder(model, note, keep_inputs, replace)
    with torch.no_grad(), forward_scope():
        return model.run_nodes(own_inputs(inputs), recorder, given)


def run_replacing(model: GraphModel, inputs: Inputs, replace: Replace) -> None:
    """Run a prepared or converted model once; operators go on with ``replace(node, name, result)``.

    No records are made.
    """

    def on_result(node: fx.Node, result: Any) -> Any:
        name = operator_name(node)
        return replace(node, name, result) if name else result

    with torch.no_grad(), forward_scope():
        model.run_nodes(own_inputs(inputs), on_result)


class _Recorder:
    """Makes a record of every operator's result while a graph runs."""

    def __init__(
        self, model: GraphModel, note: OnRecord, keep_inputs: bool, replace: Replace | None
    ) -> None:
        self.model = model
        self.note = note
        self.keep_inputs = keep_inputs
        self.replace = replace
        self._quantizers = value_quantizers(model)
        self._live = LiveValues(model)
        self._seen: set[str] = set()

    def __call__(self, node: fx.Node, result: Any) -> Any:
        name = operator_name(node)
        if name and self.replace is not None:
            result = self.replace(node, name, result)
        if name:
            operands = self._live.operands(node)
            for key, value in named_results(name, result, self._seen):
                self._seen.add(key)
                self.note(self._record(key, node, value, operands))
        self._live.take(node, result)
        return result

    def _record(self, name: str, node: fx.Node, value: Tensor, operands: Any) -> OpRecord:
        op = operator_of(self.model, node)
        called = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        filled = op.fill(tuple(operands)) if op is not None else operands
        scale, dtype = grid_of(self._quantizers.get(node), value)
        return OpRecord(
            name,
            str(node.meta["op"]) if called is None else type_name(called),
            real_numbers(value),
            scale,
            dtype,
            tuple(tuple(v.shape) if isinstance(v, Tensor) else None for v in filled),
            tuple(real_numbers(v) for v in operands) if self.keep_inputs else (),
            str(node.meta["op"]) if op is None and is_operator(called) else getattr(op, "op", ""),
            operator_name(node),
            tuple(self._data(node)),
        )

    def _data(self, node: fx.Node) -> Iterator[int]:
        """Places of the operands that are inputs of the model or constants."""
        place = 0
        for source in node.args:
            if isinstance(source, fx.Node) and isinstance(self._live.value(source), Tensor):
                if source.op in ("placeholder", "get_attr"):
                    yield place
                place += 1


def operator_name(node: fx.Node) -> str:
    """Name of the operator that a node of a prepared graph calls, ``""`` for other nodes."""
    is_call = node.op in ("call_module", "call_function", "call_method")
    return str(node.meta["name"]) if is_call and {"name", "op"} <= set(node.meta) else ""


def operator_of(model: GraphModel, node: fx.Node) -> QATOp | None:
    """The operator that a node calls, ``None`` for a call that the registry does not know."""
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module if isinstance(module, QATOp) else None


def require_torch(model: Model, what: str) -> PreparedModel:
    """``model`` if ``prepare`` made it, else ``AnalysisError``."""
    if isinstance(model, PreparedModel):
        return model
    if eager_facts(model) is not None:
        raise AnalysisError(
            f"{what}: this model was prepared in eager mode and has no graph; pass "
            "qtune.quantization.as_graph(model, example_inputs)"
        )
    kind = "an HBIR module" if isinstance(model, HbirModule) else kind_of(model)
    raise AnalysisError(
        f"{what} works on the model that prepare returned, got {kind}; pass the calib model itself"
    )


def active_quantizers(model: PreparedModel) -> dict[str, FakeQuantize]:
    """Operator name -> its own fake-quantize of the result, where it has one."""
    return {
        op.name: op.activation_post_process
        for _, op in model.operators()
        if isinstance(op.activation_post_process, FakeQuantize)
    }
