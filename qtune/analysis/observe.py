"""Run any model of the chain once and keep the result of every operator, as values.

The operators of all stages have the same names, so comparing two stages is a join on names. A
float module is seen through a prepared copy of itself in the ``_FLOAT`` state, which computes the
same and has these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten_named
from qtune.errors import AnalysisError
from qtune.hbir.feeding import bind_call, outputs_from
from qtune.hbir.module import HbirModule
from qtune.hbir.result import OpResult
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat.op import QATOp, fake_quantizes, iter_ops
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantizers.fake_quantize import FakeQuantize

Model = nn.Module | HbirModule


@dataclass(frozen=True, slots=True)
class OpRecord:
    """The result of one operator in one run.

    ``value``: real numbers, a copy. ``scale``: ``None`` where the result is no quantized number.
    ``dtype``: ``qint8``, ``qint16``, ``torch.float32``, ... ``input_shapes`` by operand.
    """

    name: str
    op_type: str
    value: Tensor
    scale: float | None
    dtype: str
    input_shapes: tuple[tuple[int, ...] | None, ...] = ()
    inputs: tuple[Any, ...] = ()


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
    twin = prepare(model, inputs)
    set_fake_quantize(twin.train(model.training), FakeQuantState._FLOAT)
    return twin


def observe(model: Model, inputs: Inputs, *, keep_inputs: bool = False) -> Observation:
    """Run ``model`` once and return what every operator computed."""
    if isinstance(model, HbirModule):
        return _observe_hbir(model, inputs)
    if not is_prepared(model):
        model = float_twin(model, inputs)
    return _observe_torch(model, inputs, keep_inputs)


def _observe_hbir(module: HbirModule, inputs: Inputs) -> Observation:
    function = module[0]
    records: dict[str, OpRecord] = {}

    def note(name: str, result: OpResult) -> None:
        records[name] = OpRecord(name, "", result.values, result.scale, result.dtype)

    feed = bind_call(function, inputs.args, dict(inputs.kwargs))
    results = function.run(feed, observe=note)
    outputs = outputs_from(function, [results[item.name] for item in function.outputs])
    return Observation(outputs, records)


def _observe_torch(model: nn.Module, inputs: Inputs, keep_inputs: bool) -> Observation:
    records: dict[str, OpRecord] = {}
    scales = _active_quantizers(model)

    def note(op: QATOp, operands: tuple[Any, ...], result: Any) -> None:
        for name, value in _named_results(op.name, result, records):
            records[name] = _record(name, op, operands, value, scales, keep_inputs)

    with results_of(model, note):
        outputs = run_model(model, inputs)
    return Observation(outputs, records)


def _active_quantizers(model: nn.Module) -> dict[str, FakeQuantize]:
    """Operator name -> the fake-quantize whose grid its result lies on now."""
    found = {}
    for node, quantizer in value_quantizers(model).items():
        if node.op == "call_module" and quantizer is not None and fake_quantizes(quantizer):
            found[model.get_submodule(str(node.target)).name] = quantizer
    return found


@contextmanager
def results_of(
    model: nn.Module, note: Callable[[QATOp, tuple[Any, ...], Any], None]
) -> Iterator[None]:
    """Call ``note(op, operands, result)`` after each operator; leave no hook behind."""
    handles = [
        op.register_forward_hook(lambda module, args, result: note(module, args, result))  # type: ignore[arg-type]
        for op in iter_ops(model)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _named_results(name: str, result: Any, seen: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) pairs: ``op``; ``op:1`` for a second result; ``op (1)`` for a second call."""
    results = result if isinstance(result, tuple | list) else (result,)
    base, call = name, 0
    while base in seen:
        call += 1
        base = f"{name} ({call})"
    for index, value in enumerate(results):
        if isinstance(value, Tensor):
            yield (base if index == 0 else f"{base}:{index}"), value


def _record(
    name: str,
    op: QATOp,
    operands: tuple[Any, ...],
    value: Tensor,
    scales: Mapping[str, FakeQuantize],
    keep_inputs: bool,
) -> OpRecord:
    quantizer = scales.get(op.name)
    filled = op.fill(operands)
    shapes = tuple(tuple(v.shape) if isinstance(v, Tensor) else None for v in filled)
    kept = tuple(_copy(v) for v in operands) if keep_inputs else ()
    return OpRecord(
        name,
        type_name(op),
        value.detach().clone(),
        None if quantizer is None else float(quantizer.scale.reshape(-1)[0]),
        str(value.dtype) if quantizer is None else str(quantizer.dtype),
        shapes,
        kept,
    )


def type_name(op: QATOp) -> str:
    """Qualified name of the operator's class in the prepared model."""
    return f"{type(op).__module__}.{type(op).__qualname__}"


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def require_torch(model: Model, what: str) -> nn.Module:
    """``model`` if it is a prepared torch model, else ``AnalysisError``."""
    if isinstance(model, HbirModule) or not is_prepared(model):
        kind = "an HBIR module" if isinstance(model, HbirModule) else "a float module"
        raise AnalysisError(f"{what} works on a prepared model, got {kind}; pass the calib model")
    return model
