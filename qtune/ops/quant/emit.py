"""Nodes between grids: what ``ConvertContext.quantize``, ``dequantize`` and ``requantize`` emit."""

from __future__ import annotations

import numpy as np

from qtune.arith.requantize import multiplier_shift, requantize
from qtune.dtype import QuantDType
from qtune.ops.kernel import Builder, FloatValue, QValue, Value
from qtune.ops.quant.codes import onnx_type

DOMAIN = "qtune"


def emit_quantize(
    b: Builder, value: Value, scale: float, dtype: QuantDType, *, half_even: bool = False
) -> QValue:
    """Append Quantize of a float value (QuantizeHalfEven for imported nodes)."""
    attrs = {"qmin": dtype.qmin, "qmax": dtype.qmax, "to": onnx_type(dtype)}
    op_type = "QuantizeHalfEven" if half_even else "Quantize"
    factor = b.constant(np.array(scale, dtype=np.float32), "scale")
    codes = b.add(op_type, [value, factor], attrs, domain=DOMAIN)
    return QValue(codes, dtype, scale, dtype.qmin, dtype.qmax)


def emit_dequantize(b: Builder, operand: QValue) -> FloatValue:
    """Append Dequantize."""
    factor = b.constant(np.array(operand.scale, dtype=np.float32), "scale")
    return FloatValue(b.add("Dequantize", [operand.value, factor], {}, domain=DOMAIN))


def emit_requantize(b: Builder, operand: QValue, scale: float, dtype: QuantDType) -> QValue:
    """Append Requantize to another scale or dtype; without a node if both are the same.

    15-bit multiplier of ``s_in / s_out`` (numerics.md section 2.3).
    """
    if operand.dtype == dtype and np.float32(operand.scale) == np.float32(scale):
        return operand
    m, n = multiplier_shift(float(np.float32(operand.scale)) / float(np.float32(scale)))
    factors = [b.constant(np.array(v, dtype=np.int64), k) for v, k in ((m, "m"), (n, "n"))]
    attrs = {"lo": dtype.qmin, "hi": dtype.qmax, "to": onnx_type(dtype)}
    value = b.add("Requantize", [operand.value, *factors], attrs, domain=DOMAIN)
    lo, hi = (
        int(requantize(fallback if code is None else code, m, n, dtype))
        for code, fallback in (
            (operand.code_min, operand.dtype.qmin),
            (operand.code_max, operand.dtype.qmax),
        )
    )
    return QValue(value, dtype, scale, lo, hi)
