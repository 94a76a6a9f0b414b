"""One operator through the whole line: lower, float run, convert, fast, reference, ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from qtune.arith.quantize import fake_quantize, scale_from_absmax
from qtune.bpu.convert import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8, qint16
from qtune.hbir.builder import META_STAGE, GraphBuilder, mark_result
from qtune.hbir.module import META_BATCH, META_INPUTS, META_OUTPUTS, HbirModule
from qtune.ops.kernel import LowerCall
from qtune.ops.quant.fake_quant import emit_fake_quant
from qtune.ops.registry import spec as find_spec
from qtune.ops.spec import OpSpec, Rule, Sample

_TYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.int64: ir.DataType.INT64,
    torch.bool: ir.DataType.BOOL,
}
DTYPES = (qint8, qint16)


@dataclass(frozen=True)
class Line:
    """A qat module of one operator, its integer module, and the grid of its result."""

    qat: HbirModule
    quantized: HbirModule
    scale: float

    def feed(self, tensors: Sequence[Any]) -> dict[str, torch.Tensor]:
        given = [t for t in tensors if isinstance(t, torch.Tensor)]
        return {item.name: t for item, t in zip(self.qat[0].inputs, given, strict=True)}

    def float_results(self, tensors: Sequence[Any]) -> list[np.ndarray]:
        return [r.numpy() for r in self.qat[0].run(self.feed(tensors)).values()]

    def integer_results(self, tensors: Sequence[Any]) -> list[np.ndarray]:
        """The results of the fast kernels, after the two oracles agreed with them bit for bit."""
        feed = self.feed(tensors)
        fast = self.quantized[0].run(feed)
        exact = self.quantized[0].run(feed, "reference")
        by_ort = run_in_onnxruntime(self.quantized, feed)
        for name, value in fast.items():
            assert tuple(value.shape) == tuple(exact[name].shape) == by_ort[name].shape
            np.testing.assert_array_equal(value.numpy(), exact[name].numpy(), err_msg="fast")
            np.testing.assert_array_equal(by_ort[name], exact[name].numpy(), err_msg="ORT")
        return [value.numpy() for value in fast.values()]


def build(
    op: str | OpSpec,
    tensors: Sequence[Any],
    attrs: Mapping[str, Any],
    dtype: QuantDType = qint8,
    *,
    scales: Sequence[float] | None = None,
    scale: float | None = None,
    march: str = "nash-e",
    open_batch: bool = False,
) -> Line:
    """``tensors``: operands by role; tensors are inputs, numbers and ``None`` stay what they are.

    Input scales default to the min-max ones; ``scale`` is the result's, min-max by default.
    """
    spec = find_spec(op) if isinstance(op, str) else op
    builder = GraphBuilder()
    scales = [_scale(t, dtype) for t in tensors] if scales is None else list(scales)
    operands, inputs = [], []
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            operands.append(tensor)
            continue
        value = builder.input(f"_input_{i}", _TYPES[tensor.dtype], tuple(tensor.shape))
        inputs.append({"leaf": len(inputs)})
        if tensor.is_floating_point():
            with builder.emitting_for(f"in{i}"):
                value = emit_fake_quant(builder, value, np.float32(scales[i]), dtype)
                mark_result(value, f"in{i}", f"in{i}")
        operands.append(value)
    expected = expected_results(spec, tensors, attrs, dtype, scales)
    out_scale = scale or (_scale(expected[0], dtype) if spec.rule is Rule.OWN_SCALE else scales[0])
    with builder.emitting_for("op"):
        results = lower(builder, spec, operands, tensors, attrs, expected)
        if spec.rule is Rule.OWN_SCALE and expected[0].is_floating_point():
            fake = emit_fake_quant(builder, results[0], np.float32(out_scale), dtype)
            results = (fake,)
        mark_result(results[0], "op", "op")
    for i, result in enumerate(results):
        builder.output(result, f"_output_{i}")
    leaves = {"tuple": [{"leaf": i} for i in range(len(results))]}
    arguments = {"dict": [["args", {"tuple": inputs}], ["kwargs", {"dict": []}]]}
    metadata = {
        META_STAGE: "qat",
        META_INPUTS: json.dumps(arguments),
        META_OUTPUTS: json.dumps(leaves),
        META_BATCH: "open" if open_batch else "fixed",
    }
    qat = HbirModule(builder.finish(metadata))
    return Line(qat, convert(qat, march), float(np.float32(out_scale)))


def lower(
    builder: Any,
    spec: OpSpec,
    operands: Sequence[Any],
    tensors: Sequence[Any],
    attrs: Mapping[str, Any],
    expected: Sequence[torch.Tensor],
) -> tuple[Any, ...]:
    call = LowerCall(
        "op",
        tuple(operands),
        attrs,
        tuple(tuple(t.shape) if isinstance(t, torch.Tensor) else None for t in tensors),
        tuple(expected[0].shape),
    )
    results = spec.lower(builder, call)  # type: ignore[misc]
    return results if isinstance(results, tuple) else (results,)


def expected_results(
    spec: OpSpec,
    tensors: Sequence[Any],
    attrs: Mapping[str, Any],
    dtype: QuantDType,
    scales: Sequence[float],
) -> list[torch.Tensor]:
    """What the float kernel gives on the fake-quantized inputs."""
    inputs = [on_grid(t, s, dtype) for t, s in zip(tensors, scales, strict=True)]
    result = spec.float_kernel(*inputs, **attrs)  # type: ignore[misc]
    return list(result) if isinstance(result, tuple) else [result]


def on_grid(tensor: Any, scale: float, dtype: QuantDType) -> Any:
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        return tensor
    return torch.from_numpy(fake_quantize(tensor.numpy(), np.float32(scale), dtype))


def _scale(value: Any, dtype: QuantDType) -> float:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return 1.0
    finite = value[torch.isfinite(value)]
    return float(scale_from_absmax(float(finite.abs().max()) if finite.numel() else 1.0, dtype))


def check(
    op: str,
    tensors: Sequence[Any],
    attrs: Mapping[str, Any],
    dtype: QuantDType = qint8,
    *,
    bar: float = 0.0,
    **options: Any,
) -> Line:
    """Float results equal the float kernel's bits; integer results lie within ``bar`` steps."""
    spec = find_spec(op)
    line = build(op, tensors, attrs, dtype, **options)
    scales = options.get("scales") or [_scale(t, dtype) for t in tensors]
    expected = expected_results(spec, tensors, attrs, dtype, scales)
    floats = line.float_results(tensors)
    if spec.rule is Rule.OWN_SCALE:
        expected = [on_grid(e, line.scale, dtype) for e in expected]
    for value, right in zip(floats, expected, strict=True):
        np.testing.assert_array_equal(value, right.numpy(), err_msg=f"{op} in float")
    for value, right in zip(line.integer_results(tensors), floats, strict=True):
        steps = np.abs(value.astype(np.float64) - right) / line.scale
        # code * scale is rounded to float32: an int16 code is off by up to 32768 * 2**-24 steps.
        limit = bar + (0.01 if bar else 0.0)
        assert steps.max(initial=0.0) <= limit, f"{op} {attrs}: {steps.max()} steps, bar {bar}"
    return line


def random_operands(rng: np.random.Generator, sample: Sample) -> list[Any]:
    """Operands of a sampled call: normal numbers, indices, numbers, ``None``."""

    def operand(i: int, shape: Any) -> Any:
        if shape is None:
            return sample.numbers.get(i)
        if i in sample.indices:
            return torch.from_numpy(rng.integers(0, sample.indices[i], shape))
        return torch.from_numpy(rng.normal(0, 1, shape).astype(np.float32))

    return [operand(i, shape) for i, shape in enumerate(sample.shapes)]
