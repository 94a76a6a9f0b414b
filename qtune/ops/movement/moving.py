"""What every movement operator shares: codes move, their scale stays (numerics.md section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from qtune.arith_fast.held import channels_last, to_held
from qtune.dtype import QuantDType
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    FloatValue,
    HbirKernel,
    KernelNode,
    Operand,
    Pending,
    PlainValue,
    QConst,
    QValue,
    Value,
)
from qtune.ops.operand_words import GIVE_SCALE, described
from qtune.ops.quant.codes import held_quant_dtype, stored

Array = np.ndarray[Any, Any]
TorchMove = Callable[..., Any]
"""``move(attrs, x, *arguments)`` on a tensor; arguments are lists of numbers, or tensors."""
ArrayMove = Callable[..., Any]
"""``move(attrs, x, *arguments)`` on NumPy arrays, ``x`` of any dtype."""


def no_flops(attrs: Attrs, inputs: Sequence[Any], output: Any) -> int:
    """Movement multiplies nothing."""
    return 0


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor or the fx node of one (not of a size or another number)."""
    if isinstance(value, fx.Node):
        return isinstance(value.meta.get("dtype"), torch.dtype)
    return isinstance(value, torch.Tensor)


def rank_of(value: Any) -> int | None:
    """Number of dimensions of a tensor or of an fx node that knows its example's shape."""
    shape = value.meta.get("shape") if isinstance(value, fx.Node) else getattr(value, "shape", None)
    return None if shape is None else len(shape)


def sizes(args: tuple[Any, ...], name: str, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Numbers given as ``f(2, 3)``, ``f((2, 3))`` or ``f(name=(2, 3))``, as one tuple."""
    values = args or (kwargs[name],)
    if len(values) == 1 and isinstance(values[0], Sequence):
        values = tuple(values[0])
    return tuple(values)


def axis_of(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + rank if dim < 0 else dim


def int64(values: Sequence[int]) -> Array:
    """Shapes, axes and indices as ONNX wants them."""
    return np.array([int(v) for v in values], dtype=np.int64)


def movement_kernel(
    op_type: str,
    apply: TorchMove,
    reference: ArrayMove,
    *,
    domain: str = "",
    outputs: Callable[[FloatNode], int] | None = None,
    index: bool = False,
) -> HbirKernel:
    """The kernel of an ONNX operator that moves its first input and computes nothing.

    ``apply`` serves qat.bc and the fast path. ``outputs`` counts the results of a node that has
    several. ``index``: the second input is a tensor of indices, not a short list of numbers.
    """

    def run_float(attrs: Attrs, x: torch.Tensor, *arguments: Any) -> Any:
        return apply(attrs, x, *(_argument(a, index) for a in arguments))

    def convert(ctx: ConvertContext, node: FloatNode) -> Any:
        count = 1 if outputs is None else outputs(node)
        arguments = node.operands[1:]

        def emit(value: Value) -> Any:
            given = [operand_value(ctx, node, argument) for argument in arguments]
            attrs = dict(node.attrs)
            return ctx.add(op_type, [value, *given], attrs, domain=domain, outputs=count)

        def fold(data: Array) -> Any:
            given = (a.data if isinstance(a, FloatConst) else None for a in arguments)
            return reference(node.attrs, data, *given)

        if isinstance(node.operands[0], Pending) and count == 1:
            return Moved(node.operands[0], emit)
        constant = all(a is None or isinstance(a, FloatConst) for a in arguments)
        return carry(ctx, node, emit, fold if constant else None)

    def fast(node: KernelNode) -> FastKernel:
        return _fast(node, apply, index)

    return HbirKernel(
        op_type, domain, run_float=run_float, convert=convert, reference=reference, fast=fast
    )


@dataclass(frozen=True, slots=True)
class Moved(Pending):
    """A result that is moved before it gets its scale (the squeeze behind a 1-d pool)."""

    source: Pending
    move: Callable[[Value], Value]

    def emit(self, ctx: ConvertContext, scale: float, dtype: QuantDType) -> QValue:
        """Emit the source with this scale, then move its codes."""
        codes = self.source.emit(ctx, scale, dtype)
        return replace(codes, value=self.move(codes.value))

    def clamp(self, ctx: ConvertContext, low: float | None, high: float | None) -> Pending | None:
        """Clamp the source, if it can."""
        clamped = self.source.clamp(ctx, low, high)
        return None if clamped is None else Moved(clamped, self.move)

    def dequantize(self, ctx: ConvertContext) -> FloatValue | None:
        """Move the source's high-precision result."""
        result = self.source.dequantize(ctx)
        return None if result is None else FloatValue(self.move(result.value))


def carry(
    ctx: ConvertContext,
    node: FloatNode,
    emit: Callable[[Value], Any],
    fold: Callable[[Array], Any] | None = None,
) -> Any:
    """Move the first operand whatever it is, and give the result its scale and kind.

    ``emit`` moves a graph value, ``fold`` a constant array; both may return a tuple. Without
    ``fold`` a constant becomes an initializer that ``emit`` moves.
    """
    data = node.operands[0]
    if isinstance(data, Pending):
        data = dequantized(ctx, node, data)
    if isinstance(data, QConst):
        one_scale(node, data)
        if fold is not None:
            return _fold_codes(data, fold)
        data = initializer(ctx, data)
    if isinstance(data, FloatConst):
        if fold is not None:
            return _each(fold(data.data), FloatConst)
        data = FloatValue(ctx.constant(data.data))
    if isinstance(data, QValue):
        codes = data
        return _each(emit(codes.value), lambda value: replace(codes, value=value))
    if isinstance(data, FloatValue):
        return _each(emit(data.value), FloatValue)
    if isinstance(data, PlainValue):
        return _each(emit(data.value), PlainValue)
    raise ConvertError(f"{node.name}: {node.op_type} got no input to move; export the model again")


def dequantized(ctx: ConvertContext, node: FloatNode, operand: Pending) -> FloatValue:
    """The float result of an operator that has no output scale (a high-precision GEMM)."""
    result = operand.dequantize(ctx)
    if result is None:
        raise ConvertError(
            f"{node.name}: the operand of {node.op_type} has no scale and no float form. "
            f"{GIVE_SCALE}"
        )
    return result


def operand_value(ctx: ConvertContext, node: FloatNode, operand: Operand | None) -> Value | None:
    """An operand without scale as a value of the new graph."""
    if operand is None:
        return None
    if isinstance(operand, FloatConst):
        return ctx.constant(operand.data)
    if isinstance(operand, PlainValue | FloatValue):
        return operand.value
    raise ConvertError(
        f"{node.name}: {node.op_type} got {described(operand)} where a shape, an index or "
        "another number without scale was expected. Keep that operand out of the quantized region."
    )


def _each(result: Any, wrap: Callable[[Any], Operand]) -> Any:
    return tuple(map(wrap, result)) if isinstance(result, tuple) else wrap(result)


def initializer(ctx: ConvertContext, data: QConst) -> QValue:
    """Constant codes of one scale as an initializer of the graph."""
    value = ctx.constant(stored(data.codes, data.dtype), "codes")
    return QValue(value, data.dtype, float(np.ravel(data.scale)[0]))


def held_constant(array: Array, dtype: str | None) -> torch.Tensor:
    """An initializer in the form in which the fast kernels hold its dtype (``"int8"``, ...)."""
    if dtype in ("int8", "int16", "int32"):
        return to_held(array, held_quant_dtype(dtype))
    return torch.from_numpy(np.array(array))


def one_scale(node: FloatNode, data: QConst) -> None:
    """Raise unless constant codes have one scale for the whole tensor."""
    if np.size(data.scale) != 1:
        raise ConvertError(
            f"{node.name}: {node.op_type} of a constant with {np.size(data.scale)} scales is not "
            "defined. Quantize it with one scale for the whole tensor."
        )


def _fold_codes(data: QConst, fold: Callable[[Array], Any]) -> Any:
    codes, floats = fold(data.codes), fold(data.data)
    if not isinstance(codes, tuple):
        return replace(data, codes=codes, data=floats, axis=-1)
    return tuple(
        replace(data, codes=c, data=f, axis=-1) for c, f in zip(codes, floats, strict=True)
    )


def _argument(value: Any, index: bool) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) and not index else value


def _fast(node: KernelNode, apply: TorchMove, index: bool) -> FastKernel:
    constants = {
        i: held_constant(array, node.input_dtypes[i]) if i == 0 or index else array.tolist()
        for i, array in node.constants.items()
    }
    present = [dtype is not None for dtype in node.input_dtypes]
    attrs = dict(node.attrs)

    def kernel(*inputs: Any) -> Any:
        given = iter(inputs)
        arguments = [
            constants[i] if i in constants else _argument(next(given), index or i == 0)
            for i, there in enumerate(present)
            if there
        ]
        result = apply(attrs, *arguments)
        if isinstance(result, tuple):
            return tuple(map(channels_last, result))
        return channels_last(result)

    return kernel
