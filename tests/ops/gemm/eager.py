"""A ``ConvertContext`` that runs each node when it is emitted, on all three implementations.

Reference kernel, fast kernel and the function body in ONNX Runtime must agree in every bit; the
context asserts it for every node that an operator's integer rule emits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
import torch

from qtune.arith.quantize import quantize
from qtune.arith_fast.held import from_held, to_held
from qtune.dtype import QuantDType, quant_dtype
from qtune.hbir.domain import single_node_model
from qtune.ops import registry
from qtune.ops.kernel import (
    FloatConst,
    FloatNode,
    FloatValue,
    KernelNode,
    LowerCall,
    QConst,
    QValue,
)
from qtune.ops.quant.codes import stored
from qtune.ops.quant.emit import emit_dequantize, emit_quantize, emit_requantize
from qtune.ops.quant.fake_quant import emit_fake_quant
from qtune.ops.spec import OpSpec

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Val:
    """A value of the eager graph: the array as a file would hold it."""

    array: Array
    is_constant: bool = False

    @property
    def codes(self) -> Array:
        return self.array.astype(np.int64)


def reference_form(array: Array) -> Array:
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def held_form(array: Array) -> torch.Tensor:
    if array.dtype.kind == "f":
        return torch.from_numpy(array)
    return to_held(array, quant_dtype(f"q{array.dtype}"))


def plain_form(held: torch.Tensor) -> Array:
    return held.numpy() if held.is_floating_point() else from_held(held)


@lru_cache(maxsize=1)
def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def run_ort(op_type: str, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
    """The function body of ``qtune::op_type`` in ONNX Runtime."""
    model = single_node_model(op_type, arrays, attrs)
    session = ort.InferenceSession(
        model.SerializeToString(), _options(), providers=["CPUExecutionProvider"]
    )
    feeds = {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)}
    result: Array = session.run(None, feeds)[0]
    return result


def run_fast(
    op_type: str,
    arrays: Sequence[Array],
    attrs: Mapping[str, Any],
    output: str,
    constants: Sequence[int],
    code_ranges: Mapping[int, tuple[int, int]] | None = None,
) -> Array:
    """The fast kernel of ``qtune::op_type``, plain codes out."""
    node = KernelNode(
        op_type,
        attrs,
        {i: arrays[i] for i in constants},
        tuple(str(a.dtype) for a in arrays),
        (output,),
        code_ranges or {},
    )
    kernel = registry.kernel("qtune", op_type)
    assert kernel is not None
    assert kernel.fast is not None
    held = [held_form(a) for i, a in enumerate(arrays) if i not in constants]
    return plain_form(kernel.fast(node)(*held))


def run_reference(op_type: str, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
    """The NumPy kernel of ``qtune::op_type``."""
    kernel = registry.kernel("qtune", op_type)
    assert kernel is not None
    assert kernel.reference is not None
    result: Array = kernel.reference(attrs, *(reference_form(a) for a in arrays))
    return result


def run_all(
    op_type: str, arrays: Sequence[Array], attrs: Mapping[str, Any], constants: Sequence[int]
) -> Array:
    """Run a node three ways, assert that they agree, return the array in its stored dtype."""
    exact = run_reference(op_type, arrays, attrs)
    by_ort = run_ort(op_type, arrays, attrs)
    assert by_ort.shape == exact.shape, (op_type, by_ort.shape, exact.shape)
    np.testing.assert_array_equal(reference_form(by_ort), exact, err_msg=f"{op_type} in ORT")
    fast = run_fast(op_type, arrays, attrs, str(by_ort.dtype), constants)
    np.testing.assert_array_equal(fast, exact, err_msg=f"{op_type} fast")
    return by_ort


@dataclass
class EagerContext:
    """See the module."""

    march: str = "nash-e"
    level: int | None = None
    high_precision_qpp: bool = False
    fuses_requantize: bool = True
    is_imported: bool = False
    reports: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    emitted: list[tuple[str, dict[str, Any], list[Val]]] = field(default_factory=list)

    def add(
        self,
        op_type: str,
        inputs: Sequence[Val | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        suffix: str = "",
    ) -> Val:
        values = [v for v in inputs if v is not None]
        self.emitted.append((op_type, dict(attrs or {}), values))
        arrays = [v.array for v in values]
        if domain != "qtune":
            run = registry.kernel(domain, op_type)
            assert run is not None
            assert run.run_float is not None
            return Val(run.run_float(attrs or {}, *map(torch.from_numpy, arrays)).numpy())
        constants = [i for i, v in enumerate(values) if v.is_constant]
        return Val(run_all(op_type, arrays, attrs or {}, constants))

    def constant(self, array: Array, suffix: str = "") -> Val:
        return Val(np.asarray(array), True)

    def report(self, kind: str, message: str, **details: Any) -> None:
        self.reports.append((kind, message, details))

    def quantize(self, value: Val, scale: float, dtype: QuantDType) -> QValue:
        return emit_quantize(self, value, scale, dtype)

    def dequantize(self, operand: QValue) -> FloatValue:
        return emit_dequantize(self, operand)

    def requantize(self, operand: QValue, scale: float, dtype: QuantDType) -> QValue:
        return emit_requantize(self, operand, scale, dtype)


@dataclass(eq=False)
class Emitted:
    """A node of the float graph: what ``lower`` emitted."""

    op_type: str
    domain: str
    inputs: list[Any]
    attrs: dict[str, Any]


class LowerBuilder:
    """Records what ``OpSpec.lower`` and ``emit_fake_quant`` emit."""

    def add(
        self,
        op_type: str,
        inputs: Sequence[Any],
        attrs: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        suffix: str = "",
    ) -> Emitted:
        return Emitted(op_type, domain, list(inputs), dict(attrs or {}))

    def constant(self, array: Array, suffix: str = "") -> Array:
        return np.asarray(array)


def lower(
    entry: OpSpec, tensors: Sequence[torch.Tensor | None], attrs: Mapping[str, Any]
) -> Emitted:
    """The float node of one call; its inputs are the tensors themselves (NumPy for constants)."""
    output = entry.float_kernel(*tensors, **attrs)  # type: ignore[misc]
    call = LowerCall(
        "layer",
        tuple(tensors),
        attrs,
        tuple(None if t is None else tuple(t.shape) for t in tensors),
        tuple(output.shape),
    )
    node: Emitted = entry.lower(LowerBuilder(), call)  # type: ignore[misc]
    return node


def run_lowered(node: Any) -> Any:
    """Run a lowered float node (and those before it) on the registry's float kernels."""
    if not isinstance(node, Emitted):
        return torch.from_numpy(node) if isinstance(node, np.ndarray) else node
    kernel = registry.kernel(node.domain, node.op_type)
    assert kernel is not None
    assert kernel.run_float is not None
    return kernel.run_float(node.attrs, *map(run_lowered, node.inputs))


def quantized(x: torch.Tensor | Array, scale: float, dtype: QuantDType) -> QValue:
    """A tensor as codes of the eager graph."""
    codes = quantize(np.asarray(x), scale, dtype)
    return QValue(Val(stored(codes, dtype)), dtype, float(np.float32(scale)))


def weight_constant(
    weight: Array, scale: Array, dtype: QuantDType, axis: int, groups: int = 1
) -> QConst:
    """What the FakeQuant of a weight converts to."""
    node = emit_fake_quant(
        LowerBuilder(), weight, scale, dtype, axis=axis, rank=weight.ndim, groups=groups
    )
    assert isinstance(node, Emitted)
    operands = (FloatConst(weight), FloatConst(node.inputs[1]))
    result = convert_node(EagerContext(), node, operands)
    assert isinstance(result, QConst)
    return result


def convert_node(ctx: EagerContext, node: Emitted, operands: Sequence[Any]) -> Any:
    """The integer rule of a lowered node on converted operands."""
    kernel = registry.kernel(node.domain, node.op_type)
    assert kernel is not None
    assert kernel.convert is not None
    return kernel.convert(ctx, FloatNode(node.op_type, node.attrs, tuple(operands), "layer"))
