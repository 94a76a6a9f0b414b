"""Look-up tables in HBIR: the pre-export form in float and the integer operators.

``lower_table`` writes the table of a ``TABLE`` operator into qat.bc; ``convert`` takes it over as
it is, so that pre-export model, qat.bc and quantized.bc hold one and the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qtune.arith.rounding import Int64Array
from qtune.arith.table import SegmentTable, lookup
from qtune.arith_fast.fake_quantize import dequantize_held, quantize_held
from qtune.arith_fast.table import lut8, lut16
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError
from qtune.ops.elementwise.operands import codes
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    HbirKernel,
    KernelNode,
    Operand,
    QValue,
    Value,
)
from qtune.ops.quant.codes import onnx_type, output_dtype, stored
from qtune.ops.registry import register_kernel

Array = np.ndarray[Any, Any]
DOMAIN = "qtune"


def lower_table(
    b: Builder,
    x: Value,
    table: Int64Array | SegmentTable,
    s_x: float,
    s_y: float,
    out: QuantDType,
) -> Value:
    """Emit the table of an operator after ``pre_export``: float in on grid s_x, float out.

    ``table``: 256 entries for a qint8 input, a segment table for a qint16 one. ``out``: the
    dtype of the result, on the grid ``s_y``.
    """
    grid_x, grid_y = (_scale(b, s, name) for s, name in ((s_x, "s_x"), (s_y, "s_y")))
    if isinstance(table, SegmentTable):
        parts = _segments(b, table)
        attrs = {"lo": out.qmin, "hi": out.qmax, "error": table.error}
        return b.add("FakeLut16", [x, grid_x, *parts, grid_y], attrs, domain=DOMAIN)
    entries = b.constant(stored(table, out), "table")
    return b.add("FakeLut8", [x, grid_x, entries, grid_y], domain=DOMAIN)


def emit_lut8(b: Builder, x: Value, table: Int64Array, out: QuantDType) -> Value:
    """Emit the integer table of 256 entries on int8 codes."""
    return b.add("Lut8", [x, b.constant(stored(table, out), "table")], domain=DOMAIN)


def emit_lut16(b: Builder, x: Value, table: SegmentTable, attrs: Mapping[str, int]) -> Value:
    """Emit the integer segment table on int16 codes; ``attrs`` are lo, hi and to."""
    return b.add("Lut16", [x, *_segments(b, table)], attrs, domain=DOMAIN)


def fake_lookup(
    table: Int64Array | SegmentTable, s_x: float, s_y: float, out: QuantDType
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what ``FakeLut8`` and ``FakeLut16`` compute: quantize, look up, dequantize.

    The forward of a ``TABLE`` operator after ``pre_export``. The result has the input's dtype and
    memory format, as the function's has: float sums behind it depend on the format.
    """
    if isinstance(table, SegmentTable):
        find, dtype = lut16(table, out), qint16
    else:
        find, dtype = lut8(table, out), qint8

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).copy_(dequantize_held(find(quantize_held(x, s_x, dtype)), s_y))

    return kernel


def _segments(b: Builder, table: SegmentTable) -> list[Value]:
    parts = {"first": table.first, "last": table.last, "entries": table.entries}
    return [b.constant(array.astype(np.int64), name) for name, array in parts.items()]


def _scale(b: Builder, scale: float, name: str) -> Value:
    return b.constant(np.array(scale, dtype=np.float32), name)


def report_table_error(ctx: ConvertContext, table: SegmentTable) -> None:
    """State a table's error where it exceeds one step."""
    if table.error > 1:
        ctx.report(
            "table_error",
            f"the table of {table.segments} segments is off by up to {table.error} steps of the "
            "output on its calibrated range",
            error=table.error,
            segments=table.segments,
        )


def _table_of(parts: Sequence[Array], error: int = 0) -> SegmentTable:
    """The table of the arrays first, last and entries."""
    first, last, entries = (np.asarray(part, dtype=np.int64) for part in parts)
    return SegmentTable(first, last, entries, error)


def _dtype_of(lo: int, hi: int) -> QuantDType:
    """The smallest dtype that has the codes lo .. hi."""
    return qint8 if qint8.qmin <= lo and hi <= qint8.qmax else qint16


def _run_fake8(
    attrs: Attrs, x: torch.Tensor, s_x: torch.Tensor, table: torch.Tensor, s_y: torch.Tensor
) -> torch.Tensor:
    out = qint8 if table.dtype == torch.int8 else qint16
    return fake_lookup(table.numpy().astype(np.int64), float(s_x), float(s_y), out)(x)


def _run_fake16(
    attrs: Attrs,
    x: torch.Tensor,
    s_x: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    entries: torch.Tensor,
    s_y: torch.Tensor,
) -> torch.Tensor:
    table = _table_of((first.numpy(), last.numpy(), entries.numpy()))
    out = _dtype_of(attrs["lo"], attrs["hi"])
    return fake_lookup(table, float(s_x), float(s_y), out)(x)


def _constants(node: FloatNode, start: int) -> list[Array]:
    """The arrays of all operands from ``start`` on; they are initializers of the file."""
    found = node.operands[start:]
    if not all(isinstance(operand, FloatConst) for operand in found):
        raise ConvertError(f"{node.name}: {node.op_type} needs its table as constants of the file")
    return [operand.data for operand in found if isinstance(operand, FloatConst)]


def _input(ctx: ConvertContext, node: FloatNode, s_x: Array, dtype: QuantDType) -> QValue:
    """The codes that the table is indexed by; another grid is brought to the table's own."""
    return ctx.requantize(codes(ctx, node, 0), float(s_x.reshape(())), dtype)


def _convert_fake8(ctx: ConvertContext, node: FloatNode) -> Operand:
    s_x, table, s_y = _constants(node, 1)
    out = qint8 if table.dtype == np.int8 else qint16
    x = _input(ctx, node, s_x, qint8)
    value = emit_lut8(ctx, x.value, table, out)
    return QValue(value, out, float(s_y.reshape(())), int(table.min()), int(table.max()))


def _convert_fake16(ctx: ConvertContext, node: FloatNode) -> Operand:
    s_x, first, last, entries, s_y = _constants(node, 1)
    lo, hi = node.attrs["lo"], node.attrs["hi"]
    out = _dtype_of(lo, hi)
    x = _input(ctx, node, s_x, qint16)
    attrs = {"lo": lo, "hi": hi, "to": onnx_type(out)}
    table = _table_of((first, last, entries), node.attrs["error"])
    report_table_error(ctx, table)
    value = emit_lut16(ctx, x.value, table, attrs)
    return QValue(value, out, float(s_y.reshape(())), lo, hi)


def _reference8(attrs: Attrs, x: Array, table: Array) -> Array:
    return np.asarray(table[x + 128])


def _fast8(node: KernelNode) -> FastKernel:
    return lut8(node.constants[1].astype(np.int64), output_dtype(node))


def _reference16(attrs: Attrs, x: Array, first: Array, last: Array, entries: Array) -> Array:
    values = lookup(_table_of((first, last, entries)), x)
    return np.asarray(np.clip(values, attrs["lo"], attrs["hi"]))


def _fast16(node: KernelNode) -> FastKernel:
    table = _table_of([node.constants[index] for index in (1, 2, 3)])
    kernel, out = lut16(table, output_dtype(node)), output_dtype(node)
    lo, hi = node.attrs["lo"], node.attrs["hi"]
    if (lo, hi) == (out.qmin, out.qmax):
        return kernel
    zero = 128 if out.bits <= 8 else 0
    return lambda x: kernel(x).clamp_(lo + zero, hi + zero)


register_kernel(HbirKernel("Lut8", DOMAIN, reference=_reference8, fast=_fast8))
register_kernel(HbirKernel("Lut16", DOMAIN, reference=_reference16, fast=_fast16))
register_kernel(HbirKernel("FakeLut8", DOMAIN, run_float=_run_fake8, convert=_convert_fake8))
register_kernel(HbirKernel("FakeLut16", DOMAIN, run_float=_run_fake16, convert=_convert_fake16))
