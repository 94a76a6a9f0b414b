"""Run any model of the chain once and keep the result of every operator, as values.

The operators of all stages have the same names, so comparing two stages is a join on names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten_named
from qtune.errors import AnalysisError
from qtune.hbir.builder import META_OP, META_RESULT
from qtune.hbir.feeding import bind_call, outputs_from
from qtune.hbir.module import HbirModule
from qtune.hbir.result import OpResult
from qtune.nn.eager import eager_facts
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat.op import QATOp, fake_quantizes
from qtune.prepare.rundir import run_files_in
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.scope import forward_scope

Model = nn.Module | HbirModule
Replace = Callable[[fx.Node, str, Any], Any]


@dataclass(frozen=True, slots=True)
class OpRecord:
    """The result of one operator in one run.

    ``op_type``: its qualified class or function. ``value``: real numbers, a copy. ``scale``:
    ``None`` where the result is no quantized number. ``dtype``: ``qint8``, ``qint16``,
    ``torch.float32``, ... ``input_shapes`` and ``inputs`` by operand. ``op``: the operator's name
    in the registry, where known; ``owner``: its name, also for a second call or result.
    """

    name: str
    op_type: str
    value: Tensor
    scale: float | None
    dtype: str
    input_shapes: tuple[tuple[int, ...] | None, ...] = ()
    inputs: tuple[Any, ...] = ()
    op: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """One run: the outputs as the model gave them, and the records in order of execution."""

    outputs: Any
    records: Mapping[str, OpRecord] = field(default_factory=dict)

    def named_outputs(self) -> list[tuple[str, Any]]:
        """Output tensors by name (numerics.md section 5); ``""`` for a single one."""
        return [(name, leaf) for name, leaf in flatten_named(self.outputs)]


def is_prepared(model: Model) -> bool:
    """Whether ``model`` came from ``prepare``."""
    return isinstance(model, nn.Module) and any(isinstance(m, QATOp) for m in model.modules())


def run_model(model: Model, inputs: Inputs) -> Any:
    """The model's outputs, without gradients; its modes stay as they are."""
    if isinstance(model, HbirModule):
        return model[0](*inputs.args, **inputs.kwargs)
    with torch.no_grad():
        return model(*inputs.args, **inputs.kwargs)


def float_twin(model: nn.Module, inputs: Inputs) -> nn.Module:
    """A prepared copy of a float module that computes in float, under the names of all stages."""
    with run_files_in(None):  # a look at a model leaves no files
        twin: nn.Module = prepare(model, inputs)
    set_fake_quantize(twin.train(model.training), FakeQuantState._FLOAT)
    return twin


def observe(model: Model, inputs: Inputs, *, keep_inputs: bool = False) -> Observation:
    """Run ``model`` once and return what every operator computed.

    A float module is seen through a prepared copy of itself (:func:`float_twin`).
    """
    if isinstance(model, HbirModule):
        return _observe_hbir(model, inputs)
    if not is_prepared(model):
        model = float_twin(model, inputs)
    return observe_graph(require_torch(model, "observe"), inputs, keep_inputs=keep_inputs)


def observe_graph(
    model: PreparedModel,
    inputs: Inputs,
    *,
    keep_inputs: bool = False,
    replace: Replace | None = None,
) -> Observation:
    """Run a prepared model once.

    ``replace(node, name, result)`` may give another result for an operator to go on with.
    """
    recorder = _Recorder(model, keep_inputs, replace)
    with torch.no_grad(), forward_scope():
        outputs = model.run_nodes(inputs, recorder)
    return Observation(outputs, recorder.records)


class _Recorder:
    """Makes a record of every operator's result while a graph runs.

    Copies are made at once: a later operator may change a result in place.
    """

    def __init__(self, model: PreparedModel, keep_inputs: bool, replace: Replace | None) -> None:
        self.model = model
        self.keep_inputs = keep_inputs
        self.replace = replace
        self.records: dict[str, OpRecord] = {}
        self._quantizers = value_quantizers(model)
        self._copies: dict[fx.Node, Any] = {}

    def __call__(self, node: fx.Node, result: Any) -> Any:
        name = operator_name(node)
        if name and self.replace is not None:
            result = self.replace(node, name, result)
        self._copies[node] = _copy(result)
        if name:
            for key, value in named_results(name, self._copies[node], self.records):
                self.records[key] = self._record(key, node, value)
        return result

    def _record(self, name: str, node: fx.Node, value: Tensor) -> OpRecord:
        op = operator_of(self.model, node)
        quantizer = self._quantizers.get(node)
        if quantizer is not None and not fake_quantizes(quantizer):
            quantizer = None
        operands = map_arg(node.args, self._copies.__getitem__)
        filled = op.fill(tuple(operands)) if op is not None else operands
        return OpRecord(
            name,
            str(node.meta["op"]) if op is None else type_name(op),
            value,
            None if quantizer is None else float(quantizer.scale.detach().reshape(-1)[0]),
            str(value.dtype) if quantizer is None else str(quantizer.dtype),
            tuple(tuple(v.shape) if isinstance(v, Tensor) else None for v in filled),
            tuple(operands) if self.keep_inputs else (),
            "" if op is None else op.op,
            operator_name(node),
        )


def operator_name(node: fx.Node) -> str:
    """Name of the operator that a node of a prepared graph calls, ``""`` for other nodes."""
    is_call = node.op in ("call_module", "call_function", "call_method")
    return str(node.meta["name"]) if is_call and {"name", "op"} <= set(node.meta) else ""


def operator_of(model: GraphModel, node: fx.Node) -> QATOp | None:
    """The operator that a node calls, ``None`` for a call that the registry does not know."""
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module if isinstance(module, QATOp) else None


def named_results(name: str, result: Any, seen: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) pairs: ``op``; ``op:1`` for a second result; ``op_1`` for a second call.

    The HBIR modules of the model have the same names.
    """
    results = result if isinstance(result, tuple | list) else (result,)
    base, call = name, 0
    while base in seen:
        call += 1
        base = f"{name}_{call}"
    for index, value in enumerate(results):
        if isinstance(value, Tensor):
            yield (base if index == 0 else f"{base}:{index}"), value


def type_name(op: QATOp) -> str:
    """Qualified name of the operator's class in the prepared model."""
    return f"{type(op).__module__}.{type(op).__qualname__}"


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple | list):
        return [_copy(item) for item in value]
    return value


def _observe_hbir(module: HbirModule, inputs: Inputs) -> Observation:
    function = module[0]
    types = {
        node.metadata_props[META_OP]: f"{node.domain or 'onnx'}.{node.op_type}"
        for node in module.model.graph
        if META_RESULT in node.metadata_props
    }
    records: dict[str, OpRecord] = {}

    def note(name: str, result: OpResult) -> None:
        records[name] = OpRecord(
            name, types.get(name, ""), result.values, result.scale, result.dtype
        )

    feed = bind_call(function, inputs.args, dict(inputs.kwargs))
    results = function.run(feed, observe=note)
    outputs = outputs_from(function, [results[item.name] for item in function.outputs])
    return Observation(outputs, records)


def require_torch(model: Model, what: str) -> PreparedModel:
    """``model`` if ``prepare`` made it, else ``AnalysisError``."""
    if isinstance(model, PreparedModel):
        return model
    if eager_facts(model) is not None:
        raise AnalysisError(
            f"{what}: this model was prepared in eager mode and has no graph; pass "
            "qtune.quantization.as_graph(model, example_inputs)"
        )
    kind = "an HBIR module" if isinstance(model, HbirModule) else f"a {type(model).__name__}"
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
