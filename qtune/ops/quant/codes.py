"""How codes are stored in HBIR files, and what real bounds become on a grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qtune.arith.quantize import quantize
from qtune.dtype import ALL_DTYPES, QuantDType, qint8, qint16, qint32
from qtune.errors import ArgumentError
from qtune.ops.kernel import KernelNode, QValue

ONNX_INT8 = 3
ONNX_INT16 = 5
ONNX_INT32 = 6
"""Values of onnx.TensorProto.DataType, for the attribute ``to`` of integer operators."""

_BYTE = 255
"""Largest distance of two codes of 8 bits."""

_ONNX_TYPES = {4: ONNX_INT8, 8: ONNX_INT8, 16: ONNX_INT16, 32: ONNX_INT32}
_NUMPY_TYPES = {4: np.int8, 8: np.int8, 16: np.int16, 32: np.int32}


def onnx_type(dtype: QuantDType) -> int:
    """The onnx element type that stores codes of ``dtype`` (qint4 is stored as int8)."""
    return _ONNX_TYPES[dtype.bits]


def stored(codes: np.ndarray[Any, Any], dtype: QuantDType) -> np.ndarray[Any, Any]:
    """Codes as the array that an initializer holds, in C order."""
    return codes.astype(_NUMPY_TYPES[dtype.bits], order="C")


def held_quant_dtype(name: str | None) -> QuantDType:
    """The dtype of a node's integer input or output named as in ``KernelNode.input_dtypes``."""
    known = {"int8": qint8, "int16": qint16, "int32": qint32}
    if name not in known:
        raise ArgumentError(f"expected an integer tensor ({', '.join(known)}), got {name}")
    return known[name]


def input_dtype(node: KernelNode, index: int) -> QuantDType:
    """The dtype of integer input ``index`` of a node."""
    return held_quant_dtype(node.input_dtypes[index])


def output_dtype(node: KernelNode) -> QuantDType:
    """The dtype of the first integer output of a node."""
    return held_quant_dtype(node.output_dtypes[0])


def range_dtype(attrs: Mapping[str, Any]) -> QuantDType:
    """The dtype whose range a node's attributes ``qmin`` and ``qmax`` state."""
    for dtype in ALL_DTYPES:
        if (dtype.qmin, dtype.qmax) == (attrs["qmin"], attrs["qmax"]):
            return dtype
    raise ArgumentError(f"{attrs['qmin']} .. {attrs['qmax']} is the range of no quantized dtype")


def carrier(low: int, high: int) -> QuantDType:
    """The smallest dtype, int8 or int16, that holds the codes ``low .. high``."""
    return qint8 if qint8.qmin <= low and high <= qint8.qmax else qint16


def march_dtype(codes: QValue, is_imported: bool) -> QuantDType:
    """The dtype that counts for the march: 8 bits less an imported zero point are int8."""
    low, high = codes.code_min, codes.code_max
    is_byte = low is not None and high is not None and high - low <= _BYTE
    return qint8 if is_imported and is_byte else codes.dtype


def code_bounds(
    low: float | None, high: float | None, scale: float, dtype: QuantDType
) -> tuple[int, int]:
    """Codes of the real bounds of a relu or clamp: ``floor(bound / s + 0.5)``, saturated.

    ``None`` means no bound. numerics.md section 3, row "relu6, clamp".
    """
    codes = quantize(np.array([low or 0.0, high or 0.0], dtype=np.float32), scale, dtype)
    lo = dtype.qmin if low is None else int(codes[0])
    hi = dtype.qmax if high is None else int(codes[1])
    return lo, hi


def tighten(
    low: float | None, high: float | None, new_low: float | None, new_high: float | None
) -> tuple[float | None, float | None]:
    """Bounds after a second clamp: each the old bound clamped by the new pair."""

    def clamp(value: float | None, fallback: float | None) -> float | None:
        if value is None:
            return fallback
        if new_low is not None:
            value = max(value, new_low)
        return value if new_high is None else min(value, new_high)

    return clamp(low, new_low), clamp(high, new_high)
