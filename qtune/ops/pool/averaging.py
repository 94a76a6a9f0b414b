"""QAvgPool: exact window sums, one multiplier per count, one rounding (numerics.md section 3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from qtune.arith.requantize import TIE_BITS, raised, rescale
from qtune.arith.rounding import Int64Array
from qtune.arith_fast.held import channels_last
from qtune.arith_fast.pool import window_sum
from qtune.arith_fast.requantize import Requantizer
from qtune.dtype import QuantDType
from qtune.ops.elementwise.operands import Deferred
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    QConst,
    QValue,
    Value,
)
from qtune.ops.movement.moving import carry, initializer, one_scale, operand_value
from qtune.ops.pool.windows import Windows
from qtune.ops.quant.codes import input_dtype, output_dtype
from qtune.ops.quant.precision import average_multipliers
from qtune.ops.registry import register_kernel

Array = np.ndarray[Any, Any]
OP = "QAvgPool"
RAISED = "QAvgPoolUp"
"""QAvgPool of ``64 * sum + 1``, whose ties always go up (``average_multipliers``)."""

Layout = Callable[[FloatNode], tuple[Windows, Windows, int | None]]
"""Row windows, column windows, and one divisor for all where there is one."""


def average(ctx: ConvertContext, node: FloatNode, layout: Layout) -> Any:
    """Convert an averaging node: codes wait for the result's scale, floats stay floats."""
    x = node.operands[0]
    if isinstance(x, QConst):
        one_scale(node, x)
        x = initializer(ctx, x)
    if isinstance(x, QValue):
        return _deferred(x, *layout(node))
    rest = [operand_value(ctx, node, operand) for operand in node.operands[1:]]
    domain = "qtune" if node.op_type in DOMAIN_NODES else ""
    attrs = dict(node.attrs)
    return carry(ctx, node, lambda v: ctx.add(node.op_type, [v, *rest], attrs, domain=domain))


DOMAIN_NODES = ("AvgPoolDivisor", "AdaptiveAvgPool")
"""Float nodes of the domain that average; the others are standard ONNX."""


def _deferred(x: QValue, rows: Windows, columns: Windows, divisor: int | None) -> Deferred:
    count = np.multiply.outer(rows.count, columns.count).astype(np.float64)
    largest = -x.dtype.qmin * int(count.max())
    if divisor is not None:
        count = np.full_like(count, divisor)
    if (count == count[:1, :1]).all():
        count = count[0, 0].reshape(())

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        ratio = float(np.float32(x.scale)) / float(np.float32(scale))
        m, n, is_raised = average_multipliers(ctx, ratio, count, largest)
        names = {
            "y0": rows.start,
            "y1": rows.end,
            "x0": columns.start,
            "x1": columns.end,
            "m": m,
            "n": n,
        }
        constants = [ctx.constant(array, name) for name, array in names.items()]
        op_type = RAISED if is_raised else OP
        return ctx.add(op_type, [x.value, *constants], attrs, domain="qtune")

    return Deferred(emit, low=0.0 if x.code_min is not None and x.code_min >= 0 else None)


def _reference(
    attrs: Attrs, x: Array, y0: Array, y1: Array, x0: Array, x1: Array, m: Array, n: Array
) -> Int64Array:
    acc = _sums(x, y0, y1, x0, x1)
    return np.clip(rescale(acc, m, n), attrs["lo"], attrs["hi"])


def _raised_reference(
    attrs: Attrs, x: Array, y0: Array, y1: Array, x0: Array, x1: Array, m: Array, n: Array
) -> Int64Array:
    acc = _sums(x, y0, y1, x0, x1)
    return np.clip(rescale(raised(acc), m, n), attrs["lo"], attrs["hi"])


def _sums(x: Array, y0: Array, y1: Array, x0: Array, x1: Array) -> Int64Array:
    return _range_sums(_range_sums(x.astype(np.int64), y0, y1, 2), x0, x1, 3)


def _range_sums(x: Int64Array, start: Array, end: Array, axis: int) -> Int64Array:
    """Sums of ``x[start:end]`` along an axis, one for each pair."""
    total = np.cumsum(x, axis=axis)
    before = np.concatenate([np.zeros_like(np.take(total, [0], axis)), total], axis)
    return np.asarray(np.take(before, end, axis) - np.take(before, start, axis))


def _fast(node: KernelNode) -> FastKernel:
    y0, y1, x0, x1, m, n = (node.constants[i] for i in range(1, 7))
    rows, columns = (y0, y1), (x0, x1)
    source, out = input_dtype(node, 0), output_dtype(node)
    sums = _one_window(rows, columns) if y0.size == x0.size == 1 else _window_sums(rows, columns)
    largest = int((y1 - y0).max(initial=1)) * int((x1 - x0).max(initial=1)) * -source.qmin
    if node.op_type == RAISED:
        sums, largest = _shifted(sums), largest << TIE_BITS
    finish = Requantizer(
        m.reshape(-1),
        n.reshape(-1),
        int(node.op_type == RAISED),
        lo=node.attrs["lo"],
        hi=node.attrs["hi"],
        out=out,
        bound=largest,
    )
    if m.size == 1:
        return lambda x: finish(sums(x))

    def kernel(x: torch.Tensor) -> torch.Tensor:
        acc = sums(x)
        # One multiplier per place: places take the part of the channels.
        return channels_last(finish(acc.reshape(-1, m.size)).reshape(acc.shape))

    return kernel


Bounds = tuple[Array, Array]
Sums = Callable[[torch.Tensor], torch.Tensor]


def _shifted(sums: Sums) -> Sums:
    return lambda x: sums(x).to(torch.int64).bitwise_left_shift_(TIE_BITS)


def _one_window(rows: Bounds, columns: Bounds) -> Sums:
    (top,), (bottom,), (left,), (right,) = (
        part.tolist() for bounds in (rows, columns) for part in bounds
    )
    count = (bottom - top) * (right - left)

    def sums(x: torch.Tensor) -> torch.Tensor:
        if x.shape[2:] == (bottom - top, right - left) and count < 1 << 15:
            return window_sum(x, x.shape[2:], x.shape[2:])
        wide = torch.int32 if x.dtype == torch.uint8 and count < 1 << 23 else torch.int64
        total = x[:, :, top:bottom, left:right].sum((2, 3), keepdim=True, dtype=wide)
        return total.sub_(_zero(x) * count)

    return sums


def _window_sums(rows: Bounds, columns: Bounds) -> Sums:
    tensors = [torch.from_numpy(np.array(part)) for bounds in (rows, columns) for part in bounds]

    @cache
    def steps(height: int, width: int) -> tuple[Any, Any]:
        return _strides(*rows, height), _strides(*columns, width)

    def sums(x: torch.Tensor) -> torch.Tensor:
        down, across = steps(x.shape[2], x.shape[3])
        if down is not None and across is not None:
            kernel, stride, begin, end = zip(down, across, strict=True)
            return window_sum(x, kernel, stride, (*begin, *end))
        codes = x.to(torch.int64) - _zero(x)
        top, bottom, left, right = tensors
        return _torch_range_sums(_torch_range_sums(codes, top, bottom, 2), left, right, 3)

    return sums


def _zero(x: torch.Tensor) -> int:
    return 128 if x.dtype == torch.uint8 else 0


def _strides(start: Array, end: Array, size: int) -> tuple[int, int, int, int] | None:
    """``(kernel, stride, begin pad, end pad)`` that give these windows, if any do."""
    kernel = int((end - start).max())
    first = np.where(start == 0, end - kernel, start)
    stride = int(first[1] - first[0]) if first.size > 1 else kernel
    begin, stop = int(-first[0]), int(first[-1]) + kernel
    pad = max(stop - size, 0)
    fits = (
        stride > 0
        and begin >= 0
        and (np.diff(first) == stride).all()
        and (np.maximum(first, 0) == start).all()
        and (np.minimum(first + kernel, size) == end).all()
        and (size + begin + pad - kernel) // stride + 1 == first.size
    )
    return (kernel, stride, begin, pad) if fits else None


def _torch_range_sums(
    x: torch.Tensor, start: torch.Tensor, end: torch.Tensor, axis: int
) -> torch.Tensor:
    pads = (0, 0, 1, 0) if axis == 2 else (1, 0)
    total = F.pad(x, pads).cumsum(axis)
    return total.index_select(axis, end) - total.index_select(axis, start)


def float_kernel_of(
    op_type: str, run_float: Callable[..., torch.Tensor], layout: Layout
) -> HbirKernel:
    """A float node of the domain that averages; outside the quantized region it stays."""

    def convert(ctx: ConvertContext, node: FloatNode) -> Any:
        return average(ctx, node, layout)

    def reference(attrs: Attrs, *arrays: Array) -> Array:
        result: Array = run_float(attrs, *map(torch.from_numpy, arrays)).numpy()
        return result

    def fast(node: KernelNode) -> FastKernel:
        constants = [torch.from_numpy(np.array(a)) for _, a in sorted(node.constants.items())]
        return lambda x: run_float(node.attrs, x, *constants)

    return HbirKernel(op_type, "qtune", run_float, convert, reference, fast)


register_kernel(HbirKernel(OP, "qtune", reference=_reference, fast=_fast))
register_kernel(HbirKernel(RAISED, "qtune", reference=_raised_reference, fast=_fast))
