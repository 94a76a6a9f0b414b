"""A call through the whole line: prepared, calibrated, exported, converted, run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from qtune import march
from qtune.bpu.convert import convert
from qtune.dtype import QuantDType, qint16, quant_dtype
from qtune.errors import ArgumentError, ConvertError
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import Quantizers, value_quantizers
from qtune.nn.qat import QATOp, iter_ops, iter_stubs
from qtune.ops.spec import Rule
from qtune.prepare.rundir import run_files_in
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.testing.fuzzing.model import flat
from qtune.testing.fuzzing.operands import modules_of

if TYPE_CHECKING:
    from qtune.testing.fuzzing.call import OperatorCall

COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
"""Operators whose result is decided by which operand is larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The stages of one call.

    ``steps``: the scale of each result, ``None`` for masks, integers and what is not quantized.
    """

    call: OperatorCall
    prepared: PreparedModel
    quantized: HbirModule
    steps: tuple[float | None, ...]

    def fake_quant(self) -> list[Tensor]:
        """Results of the fake-quant model."""
        with torch.no_grad():
            return flat(self.prepared(*self.call.inputs))

    def expected(self, got: Sequence[Tensor]) -> list[Tensor]:
        """Results of the fake-quant model; those of ``got`` where a comparison is undecided.

        Operands on different int16 grids are compared over a common shift: which of two that lie
        within a step of the coarser grid is larger, the integers can't tell (numerics.md).
        """
        results = self.fake_quant()
        unknown = self._undecided() if self.call.op in COMPARISONS else None
        if unknown is None or len(got) != 1 or got[0].shape != results[0].shape:
            return results
        return [torch.where(unknown, got[0], results[0])]

    def _undecided(self) -> Tensor | None:
        """Where the operands of a comparison lie too close; ``None`` if they share a grid."""
        places = self.prepared.graph.find_nodes(op="placeholder")
        grids = [_input_quantizer(self.prepared, node) for node in places]
        known = [grid for grid in grids if grid is not None]
        if len(known) != 2 or len(grids) != 2 or qint16 not in {grid.dtype for grid in known}:
            return None
        scales = [float(grid.scale) for grid in known]
        if scales[0] == scales[1]:
            return None
        with torch.no_grad():
            a, b = (grid(x) for grid, x in zip(known, self.call.inputs, strict=True))
        undecided: Tensor = (a - b).abs() <= max(scales)
        return undecided

    def run(self, mode: str = "fast") -> list[Tensor]:
        """Results of the integer model with its ``"fast"`` or ``"reference"`` kernels."""
        function = self.quantized[0]
        pairs = zip(function.inputs, self.call.inputs, strict=True)
        found = function.run({item.name: x for item, x in pairs}, mode)
        return [found[item.name] for item in function.outputs]


@contextmanager
def quietly(name: str) -> Iterator[None]:
    """No run files, and no hints about a model that is only there to be fuzzed."""
    logger = logging.getLogger("qtune")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with run_files_in(None), march.march(name):
            yield
    finally:
        logger.setLevel(before)


def build_line(call: OperatorCall) -> Line:
    """Prepare, calibrate, set the given scales, export and convert the model of ``call``."""
    with quietly(call.march):
        model, calibration = call.model(), call.calibration()
        prepared = calibrated(model, calibration, quant_dtype(call.dtype))
        _check_operator(prepared, call)
        _set_scales(prepared, call)
        module = converted(prepared, calibration)
        return Line(call, prepared, module, output_steps(prepared))


def _check_operator(prepared: PreparedModel, call: OperatorCall) -> None:
    """A user's operator must be the one that runs: its kernel may be recorded as torch's parts."""
    if call.entry.rule is Rule.DECOMPOSED or not modules_of(call.entry):
        return
    names = sorted({op.spec.name for op in iter_ops(prepared)} - {"quant_stub", "dequant_stub"})
    if call.op not in names:
        raise ArgumentError(
            f"{call.op}: a call of its float_kernel was recorded as {', '.join(names)}. Make the "
            "kernel a function that is one of the targets and that hands itself to "
            "torch.overrides.handle_torch_function (docs/how-to/write-an-operator.md)"
        )


def prepared_model(model: nn.Module, data: Sequence[Tensor], dtype: QuantDType) -> PreparedModel:
    """The model with inputs and result of ``dtype``, in eval mode."""
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": dtype, "op": dtype})])
    prepared: PreparedModel = prepare(model, tuple(data), setter).eval()
    return prepared


def calibrated(model: nn.Module, data: Sequence[Tensor], dtype: QuantDType) -> PreparedModel:
    """The prepared model with the scales of ``data``, in the state VALIDATION."""
    prepared = prepared_model(model, data, dtype)
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        prepared(*data)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def converted(prepared: PreparedModel, example: Sequence[Tensor]) -> HbirModule:
    """The integer module, all of it on the BPU."""
    module = convert(export(prepared, tuple(example)))
    left = [note for note in module.report if note["kind"] == "stays float"]
    if left:
        raise ConvertError(f"the operator stays float: {left[0]}")
    return module


def _set_scales(prepared: PreparedModel, call: OperatorCall) -> None:
    places = prepared.graph.find_nodes(op="placeholder")
    inputs = [_input_quantizer(prepared, node) for node in places]
    for quantizer, scale in zip(inputs, call.input_scales(), strict=True):
        if quantizer is not None and scale is not None:
            quantizer.set_qparams(scale)
    weight = call.weight_scale()
    for _, kind, quantizer in iter_stubs(prepared):
        if kind == "weight" and weight is not None:
            quantizer.set_qparams(torch.full_like(quantizer.scale, weight))
    if call.output_scale is not None:
        for quantizer in _output_quantizers(prepared):
            if quantizer is not None and not any(quantizer is known for known in inputs):
                quantizer.set_qparams(call.output_scale)


def _input_quantizer(prepared: PreparedModel, node: fx.Node) -> FakeQuantize | None:
    """That of the QuantStub behind an input; integers and masks have none."""
    for user in node.users:
        op = prepared.get_submodule(str(user.target)) if user.op == "call_module" else None
        if isinstance(op, QATOp) and op.spec.name == "quant_stub":
            found = op.activation_post_process
            return found if isinstance(found, FakeQuantize) else None
    return None


def output_steps(prepared: PreparedModel) -> tuple[float | None, ...]:
    """The scale of each output of the model, ``None`` for masks and integers."""
    found = _output_quantizers(prepared)
    return tuple(None if quantizer is None else float(quantizer.scale) for quantizer in found)


def _output_quantizers(prepared: PreparedModel) -> list[FakeQuantize | None]:
    known = value_quantizers(prepared)
    (output,) = prepared.graph.find_nodes(op="output")
    return [_behind(prepared, node, known) for node in output.args[0]]


def _behind(prepared: PreparedModel, node: Any, known: Quantizers) -> FakeQuantize | None:
    """The fake-quantize of what a DeQuantStub takes."""
    module = prepared.get_submodule(str(node.target)) if node.op == "call_module" else None
    if not isinstance(module, QATOp) or module.spec.name != "dequant_stub":
        return None
    return known.get(node.args[0])
