"""Rounding and saturation (numerics.md section 1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.dtype import QuantDType

FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]
Int64Array = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, Any]


def round_half_up(v: Any) -> FloatArray:
    """Round to the nearest integer, ties upwards: ``floor(v + 0.5)``, in the float dtype of ``v``.

    >>> round_half_up([0.5, 1.5, -0.5, -1.5]).tolist()
    [1.0, 2.0, 0.0, -1.0]
    """
    values = np.asarray(v)
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    result: FloatArray = np.asarray(np.floor(values + values.dtype.type(0.5)))
    return result


def saturate(codes: Any, dtype: QuantDType) -> Int64Array:
    """Clamp codes (integers, or floats that hold integers) to ``dtype``; int64 comes out.

    >>> saturate([-200, 5, 200], QuantDType("qint8", 8)).tolist()
    [-128, 5, 127]
    """
    return np.asarray(np.clip(np.asarray(codes), dtype.qmin, dtype.qmax)).astype(np.int64)
