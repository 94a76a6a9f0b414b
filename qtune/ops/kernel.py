"""How one HBIR operator runs and converts: the interfaces between operators and the stages.

An HBIR operator is an ONNX node, named by ``(domain, op_type)``: standard ONNX (``""``) or the
domain ``"qtune"``. Float nodes live in qat.bc, integer nodes in quantized.bc.

Codes at run time have two forms:

* reference: NumPy ``int64`` arrays of plain codes, NCHW, whatever the dtype;
* held (fast): qint8 as ``torch.uint8`` holding ``code + 128`` (channels_last for 4-d maps),
  qint16 as ``torch.int16``, int32 as ``torch.int32``, floats as ``torch.float32``, masks as bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from qtune.dtype import QuantDType

if TYPE_CHECKING:
    pass

Attrs = Mapping[str, Any]
Value = Any
"""A value of the graph under construction (``onnx_ir.Value``); opaque to operators."""


class ExampleSize(int):
    """A size that the model computes from its inputs (``x.shape[0]``), as the example gave it.

    Among the attrs of a :class:`LowerCall` it marks a number that other inputs change, so that a
    lowering can keep that dimension open; everywhere else it is a plain ``int``.
    """


class Builder(Protocol):
    """Emits HBIR nodes. Node names and origins are the builder's business."""

    def add(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        attrs: Attrs | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        suffix: str = "",
    ) -> Any:
        """Append a node; return its value, or a tuple of values where ``outputs > 1``."""

    def constant(self, array: np.ndarray[Any, Any], suffix: str = "") -> Value:
        """Return an initializer holding ``array``."""


@dataclass(frozen=True, slots=True)
class LowerCall:
    """What ``OpSpec.lower`` gets: one operator of the pre-export model, attrs resolved to numbers.

    ``operands`` are float values by role (weights already fake-quantized), ``None`` if absent;
    a Python scalar operand stays a Python scalar. Shapes are the example's. ``input_dtypes`` are
    torch's names (``"float32"``, ``"int64"``, ``"bool"``) by role, ``None`` for a scalar; left
    empty, every tensor is float32.
    """

    name: str
    operands: tuple[Value | float | int | None, ...]
    attrs: Attrs
    input_shapes: tuple[tuple[int, ...] | None, ...]
    output_shape: tuple[int, ...]
    input_dtypes: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class QValue:
    """Integer codes in the graph under construction: ``real = code * scale``."""

    value: Value
    dtype: QuantDType
    scale: float
    code_min: int | None = None
    code_max: int | None = None


@dataclass(frozen=True, slots=True)
class QConst:
    """A fake-quantized initializer: codes (int64) and float32 scale(s) along ``axis``.

    ``axis`` is -1 for one scale. ``data`` is the float32 initializer before quantization.
    """

    codes: np.ndarray[Any, Any]
    scale: np.ndarray[Any, Any]
    axis: int
    dtype: QuantDType
    data: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class FloatConst:
    """An initializer that no FakeQuant follows: a bias, a shape, a scalar."""

    data: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class FloatValue:
    """A float tensor outside the quantized region (a graph input, a CPU operator's result)."""

    value: Value


@dataclass(frozen=True, slots=True)
class PlainValue:
    """A tensor without scale: bool masks, integer indices."""

    value: Value


class Pending:
    """The exact result of an operator whose output scale is still to come.

    A following FakeQuant calls :meth:`emit` with its scale and dtype. ``accumulate`` and ``clamp``
    let an addend or a relu join the operator before its one requantize; they return ``None`` where
    that is impossible. ``dequantize`` emits the high-precision float result, or ``None``.
    Subclass it in the operator's file.
    """

    def emit(self, ctx: ConvertContext, scale: float, dtype: QuantDType) -> QValue:
        """Emit the integer operator with this output scale."""
        raise NotImplementedError

    def accumulate(self, ctx: ConvertContext, addend: QValue) -> Pending | None:
        """Return the operator with ``addend`` added before the requantize."""
        return None

    def clamp(self, ctx: ConvertContext, low: float | None, high: float | None) -> Pending | None:
        """Return the operator with its real result clamped to [low, high]."""
        return None

    def dequantize(self, ctx: ConvertContext) -> FloatValue | None:
        """Emit the high-precision (qint32) float result."""
        return None


Operand = QValue | QConst | FloatConst | FloatValue | PlainValue | Pending


class ConvertContext(Builder, Protocol):
    """The builder during conversion, with the facts that integer rules need.

    ``level``: the consistency level, ``None``: unset. ``high_precision_qpp``: multipliers have 31
    bits instead of 15, as on every level. ``fuses_requantize``: a GEMM
    does its own requantize; else its accumulator is a result. ``is_imported``: the module comes
    from an ONNX file, whose zero points are carried as ranges of codes. A rule never computes ``m``
    and ``n`` itself: ``multiplier``, ``multipliers`` and ``multipliers_over_shift`` of
    ``qtune.ops.quant.precision`` (``single`` and ``shared`` of ``qtune.ops.elementwise.scaling``)
    give them in the conversion's precision.
    """

    march: str
    level: int | None
    high_precision_qpp: bool
    fuses_requantize: bool
    is_imported: bool

    def report(self, kind: str, message: str, **details: Any) -> None:
        """Note something for the conversion report under the current operator's name."""

    def quantize(self, value: Value, scale: float, dtype: QuantDType) -> QValue:
        """Emit Quantize of a float value."""

    def dequantize(self, operand: QValue) -> FloatValue:
        """Emit Dequantize."""

    def requantize(self, operand: QValue, scale: float, dtype: QuantDType) -> QValue:
        """Emit a Requantize of codes to another scale or dtype (no node if both are equal)."""


@dataclass(frozen=True, slots=True)
class FloatNode:
    """A float node met by ``convert``: attributes and the operands' conversion results.

    The shapes are those of the float node's inputs and first output.
    """

    op_type: str
    attrs: Attrs
    operands: tuple[Operand | None, ...]
    name: str
    input_shapes: tuple[tuple[int, ...] | None, ...] = ()
    output_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelNode:
    """A node met by the planner: what a fast kernel may prepare before it runs.

    ``constants`` maps input index to the initializer's array. ``input_dtypes`` and
    ``output_dtypes`` are ``"int8"``, ``"int16"``, ``"int32"``, ``"int64"``, ``"float32"``,
    ``"bool"``. ``code_ranges`` gives the known (lo, hi) of integer inputs.
    """

    op_type: str
    attrs: Attrs
    constants: Mapping[int, np.ndarray[Any, Any]]
    input_dtypes: tuple[str | None, ...]
    output_dtypes: tuple[str, ...]
    code_ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)


FastKernel = Callable[..., Any]
"""``kernel(*held_inputs) -> held output (or tuple)``; constants are already inside."""

NumpyArrays = Sequence[Any]


@dataclass(frozen=True, slots=True)
class HbirKernel:
    """One ``(domain, op_type)``.

    ``run_float(attrs, *tensors)``: torch kernel for qat.bc; a single tensor or a tuple.
    ``convert(ctx, node)``: integer rule of a float node; returns an ``Operand`` (or a tuple).
    ``reference(attrs, *arrays)``: NumPy int64 oracle of an integer (or movement) node.
    ``fast(node)``: returns the fast kernel for a node.
    """

    op_type: str
    domain: str = ""
    run_float: Callable[..., Any] | None = None
    convert: Callable[[ConvertContext, FloatNode], Any] | None = None
    reference: Callable[..., Any] | None = None
    fast: Callable[[KernelNode], FastKernel] | None = None
