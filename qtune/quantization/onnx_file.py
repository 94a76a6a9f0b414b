"""``export_to_onnx``: a prepared model as a standard ONNX file, by torch's own exporter.

A fake-quantize becomes, at the scale that it has:

* of a weight: its codes, with a DequantizeLinear where the opset has one for its grid (qint8, per
  channel from opset 13 on), else the values that the codes stand for. Both are exact;
* of activations: what ``qtune.quantizers.onnx_form`` says.
"""

from __future__ import annotations

import copy
import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.onnx import OperatorExportTypes, TrainingMode

from qtune.capture.guards import is_guard
from qtune.capture.inputs import Inputs, as_inputs
from qtune.errors import ArgumentError, ExportError, NotCalibratedError
from qtune.nn.eager import as_graph
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.prepare.absorb import absorb_for_export
from qtune.quantization.deploy import is_converted
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.onnx_form import INT8, onnx_form
from qtune.quantizers.scope import uncalibrated_text
from qtune.report.files import atomic_path

PER_CHANNEL_OPSET = 13
"""The first opset whose QuantizeLinear has an axis."""

OPSETS = range(11, 21)
"""What torch's TorchScript exporter writes."""


def export_to_onnx(
    model: nn.Module,
    args: Any,
    f: str | os.PathLike[str] | IO[bytes],
    export_params: bool = True,
    verbose: bool = False,
    training: TrainingMode = TrainingMode.EVAL,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    operator_export_type: OperatorExportTypes | None = OperatorExportTypes.ONNX_FALLTHROUGH,
    opset_version: int = 11,
    do_constant_folding: bool = True,
    example_outputs: Any = None,
    strip_doc_string: bool = True,
    dynamic_axes: Any = None,
    keep_initializers_as_inputs: bool | None = None,
    custom_opsets: Mapping[str, int] | None = None,
    enable_onnx_checker: bool = False,
) -> None:
    """Write a prepared model (or a float one) to ``f``, a path or a binary file.

    ``args``: the example inputs, as for ``prepare``. ``operator_export_type=None`` allows standard
    ONNX operators only, the default also operators that ONNX lacks, as nodes of their own domain
    for looking at. ``opset_version``: 11 to 20. ``strip_doc_string`` drops the source lines.
    The other arguments are those of ``torch.onnx.export``. ``model`` stays as it is; it is
    exported as in the state VALIDATION.

    Raises ``ArgumentError`` for a converted model, ``NotCalibratedError`` for a fake-quantize
    without a scale and ``ExportError`` where torch can't write the model.
    """
    if opset_version not in OPSETS:
        raise ArgumentError(
            f"export_to_onnx: opset_version must be {OPSETS[0]} to {OPSETS[-1]}, got "
            f"{opset_version!r}"
        )
    if example_outputs is not None:
        raise ArgumentError(
            "export_to_onnx: example_outputs is not needed, the model runs on args; leave it out"
        )
    if is_converted(model):
        raise ArgumentError(
            "export_to_onnx: a converted model runs programs of the BPU, which standard ONNX "
            "lacks. Export the prepared model; or write the integers with export_hbir or "
            "visualize_model, whose files are ONNX with qtune's operators as functions"
        )
    if dynamic_axes and not (input_names and output_names):
        raise ArgumentError(
            "export_to_onnx: dynamic_axes names inputs and outputs; give input_names and "
            "output_names, too"
        )
    inputs = as_inputs(args, "export_to_onnx", ExportError)
    standard = _standard(model, inputs, opset_version)
    content = _written(
        standard,
        inputs,
        export_params=export_params,
        verbose=verbose,
        training=training,
        input_names=input_names,
        output_names=output_names,
        operator_export_type=operator_export_type or OperatorExportTypes.ONNX,
        opset_version=opset_version,
        do_constant_folding=do_constant_folding,
        dynamic_axes=dynamic_axes,
        keep_initializers_as_inputs=bool(keep_initializers_as_inputs),
        custom_opsets=custom_opsets,
    )
    proto = onnx.load_model_from_string(content)
    if strip_doc_string:
        for node in proto.graph.node:
            node.ClearField("doc_string")
    if enable_onnx_checker:
        onnx.checker.check_model(proto)
    _save(proto.SerializeToString(), f)


def _standard(model: nn.Module, inputs: Inputs, opset: int) -> nn.Module:
    """A copy of the model with the operators of the file in place of its fake-quantizes."""
    result: nn.Module = as_graph(model, inputs)
    if isinstance(result, PreparedModel):
        result = result.select_branch(inputs)
    result = copy.deepcopy(result) if result is model else result
    missing = [f"{name} ({kind})" for name, kind, q in iter_stubs(result) if not bool(q.observed)]
    if missing:
        advice = "Calibrate the prepared model on data that reaches them."
        raise NotCalibratedError(uncalibrated_text("export_to_onnx: ", missing, advice))
    absorb_for_export(result)
    if isinstance(result, PreparedModel):
        _without_guards(result)
    for path, quantizer in list(result.named_modules(remove_duplicate=False)):
        if isinstance(quantizer, FakeQuantize):
            is_weight = path.rpartition(".")[2] == "weight_fake_quant"
            new = _Weight(quantizer, opset) if is_weight else _Quantizer(quantizer)
            result.set_submodule(path, new)
    return result


def _without_guards(model: PreparedModel) -> None:
    """The file is for the example's path; under torch's trace sizes are tensors, and no guard."""
    for node in list(model.graph.nodes):
        if is_guard(node) and not node.users:
            model.graph.erase_node(node)
    model.recompile()


def _written(model: nn.Module, inputs: Inputs, **options: Any) -> bytes:
    buffer = io.BytesIO()
    training = options["training"]
    flag = {TrainingMode.EVAL: False, TrainingMode.TRAINING: True}.get(training, model.training)
    try:
        with _quiet():
            torch.onnx.export(
                model.train(flag),
                tuple(inputs.args),
                buffer,  # type: ignore[arg-type]
                kwargs=dict(inputs.kwargs) or None,
                dynamo=False,
                **options,
            )
    except Exception as error:  # torch's own errors and those of the model's code under its trace
        raise ExportError(
            f"export_to_onnx: torch can't write {type(model).__name__} in opset "
            f"{options['opset_version']} ({type(error).__name__}: {error})"
        ) from error
    return buffer.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """torch announces the end of this exporter, and warns of every size that it reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", TracerWarning)
        yield


def _save(content: bytes, f: str | os.PathLike[str] | IO[bytes]) -> None:
    if isinstance(f, (str, os.PathLike)):
        with atomic_path(f) as partial:
            partial.write_bytes(content)
    else:
        f.write(content)


class _Quantizer(nn.Module):
    """A fake-quantize of activations as it is written."""

    scale: Tensor

    def __init__(self, quantizer: FakeQuantize) -> None:
        super().__init__()
        self.register_buffer("scale", quantizer.scale.detach().clone())
        self.limits = (float(quantizer.quant_min), float(quantizer.quant_max))
        self.axis = quantizer.ch_axis

    def forward(self, x: Tensor) -> Tensor:
        return onnx_form(x, self.scale, self.limits, self.axis)


class _Weight(_Quantizer):
    """A fake-quantize of a weight: what it gives is known now."""

    def __init__(self, quantizer: FakeQuantize, opset: int) -> None:
        super().__init__(quantizer)
        has_axis = opset >= PER_CHANNEL_OPSET or self.scale.numel() == 1
        self.has_codes = self.limits == INT8 and has_axis

    def forward(self, x: Tensor) -> Tensor:
        values, scale = x.detach().cpu().numpy(), self.scale.cpu().numpy()
        axis = self.axis % x.dim() if scale.size > 1 else None
        if axis is not None:
            scale = scale.reshape([-1 if d == axis else 1 for d in range(x.dim())])
        codes = np.clip(np.floor(values / scale + np.float32(0.5)), *self.limits)
        if not self.has_codes:
            return torch.from_numpy((codes * scale).astype(values.dtype)).to(x.device)
        stored = torch.from_numpy(codes.astype(np.int8)).to(x.device)
        own = self.scale if axis is not None else self.scale.reshape(())
        result: Tensor = _DequantizeLinear.apply(stored, own, axis)  # type: ignore[no-untyped-call]
        return result


class _DequantizeLinear(torch.autograd.Function):
    """DequantizeLinear of int8 codes."""

    @staticmethod
    def forward(ctx: Any, codes: Tensor, scale: Tensor, axis: int | None) -> Tensor:
        if axis is not None:
            scale = scale.reshape([-1 if d == axis else 1 for d in range(codes.dim())])
        return codes * scale

    @staticmethod
    def symbolic(g: Any, codes: Any, scale: Any, axis: int | None) -> Any:
        if axis is None:
            zero = g.op("Constant", value_t=torch.zeros((), dtype=torch.int8))
            return g.op("DequantizeLinear", codes, scale, zero)
        count = scale.type().sizes()[0]
        zero = g.op("Constant", value_t=torch.zeros(count, dtype=torch.int8))
        return g.op("DequantizeLinear", codes, scale, zero, axis_i=axis)
