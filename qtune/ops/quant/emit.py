"""Nodes between grids: what ``ConvertContext.quantize``, ``dequantize`` and ``requantize`` emit."""

from __future__ import annotations

import numpy as np

from qtune.arith.requantize import requantize
from qtune.dtype import QuantDType
from qtune.ops.kernel import Builder, ConvertContext, FloatValue, QValue, Value
from qtune.ops.quant.codes import onnx_type
from qtune.ops.quant.precision import multiplier

DOMAIN = "qtune"


def emit_quantize(
    b: Builder,
    value: Value,
    scale: float,
    dtype: QuantDType,
    *,
    half_even: bool = False,
    limits: tuple[int, int] | None = None,
) -> QValue:
    """Append Quantize of a float value (QuantizeHalfEven for imported nodes).

    ``limits``: smallest and largest code, those of ``dtype`` where not given.
    """
    low, high = limits or (dtype.qmin, dtype.qmax)
    attrs = {"qmin": low, "qmax": high, "to": onnx_type(dtype)}
    op_type = "QuantizeHalfEven" if half_even else "Quantize"
    factor = b.constant(np.array(scale, dtype=np.float32), "scale")
    codes = b.add(op_type, [value, factor], attrs, domain=DOMAIN)
    return QValue(codes, dtype, scale, low, high)


def emit_dequantize(b: Builder, operand: QValue) -> FloatValue:
    """Append Dequantize."""
    factor = b.constant(np.array(operand.scale, dtype=np.float32), "scale")
    return FloatValue(b.add("Dequantize", [operand.value, factor], {}, domain=DOMAIN))


def emit_requantize(b: ConvertContext, operand: QValue, scale: float, dtype: QuantDType) -> QValue:
    """Append Requantize to another scale or dtype; without a node if both are the same.

    Multiplier of ``s_in / s_out`` in the conversion's precision (numerics.md section 2.3).
    """
    if operand.dtype == dtype and np.float32(operand.scale) == np.float32(scale):
        return operand
    m, n = multiplier(b, float(np.float32(operand.scale)) / float(np.float32(scale)))
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


def limit_codes(b: Builder, codes: QValue, low: int, high: int) -> QValue:
    """Append QClip where codes may lie outside ``low .. high``."""
    least = codes.dtype.qmin if codes.code_min is None else codes.code_min
    most = codes.dtype.qmax if codes.code_max is None else codes.code_max
    if low <= least and most <= high:
        return codes
    attrs = {"lo": low, "hi": high, "to": onnx_type(codes.dtype)}
    value = b.add("QClip", [codes.value], attrs, domain=DOMAIN)
    return QValue(value, codes.dtype, codes.scale, max(low, least), min(high, most))
