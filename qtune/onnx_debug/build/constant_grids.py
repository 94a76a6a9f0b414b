"""Constants that lie on a grid which the file does not name.

An exporter to an opset without scales per channel writes fake-quantized weights as rounded floats
(``export_to_onnx`` below opset 13). Their grid is found again: the scale is the largest magnitude
of a channel over its code, and the other values must be whole multiples of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.arith.quantize import scale_from_absmax
from qtune.dtype import qint8
from qtune.hbir.hz_calibration import Calibration

Array = np.ndarray[Any, Any]

_FIRST_CODES = (qint8.qmax, -qint8.qmin)
"""The code of the largest magnitude is mostly one of these."""

_OFF = 1e-4
"""Most steps that a value may be off its code; float32 rounds a product to 2**-24 of it, and a code
is at most 128, so twice that rounding is 2e-5 steps."""


_EVIDENCE = 4
"""Least values that lie on the grid of a larger one of their channel: that they do by chance has a
probability of about 0.03 each."""


def grid_of_values(array: Array, axis: int = -1) -> Calibration | None:
    """The int8 grid, one scale or one per channel along ``axis``, that all values lie on.

    ``None`` where there is none, and for constants of a few numbers, which lie on many grids.
    """
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) if axis >= 0 else array
    known = [row[row != 0] for row in (rows if axis >= 0 else rows.reshape(1, -1))]
    if sum(max(0, row.size - 1) for row in known) < _EVIDENCE:
        return None
    found: list[np.float32] = []
    for row in known:
        scale = _scale(row)
        if scale is None:
            return None
        found.append(scale)
    scales = np.asarray(found, np.float32)
    thresholds = (scales * np.float32(-qint8.qmin)).astype(np.float32)
    return Calibration(scales, thresholds, qint8.bits, axis if scales.size > 1 else -1)


def _scale(values: Array) -> np.float32 | None:
    """The scale of a channel's values that are not 0; ``None`` where they lie on no grid."""
    if not values.size:
        return np.float32(scale_from_absmax(np.zeros(1, np.float32), qint8)[0])
    top = np.abs(values).max()
    for code in (*_FIRST_CODES, *range(qint8.qmax - 1, 0, -1)):
        scale = np.float32(top / np.float32(code))
        if scale > 0 and _fits(values[:8], scale) and _fits(values, scale):
            return scale
    return None


def _fits(values: Array, scale: np.float32) -> bool:
    ratio = values.astype(np.float64) / np.float64(scale)
    codes = np.rint(ratio)
    return bool(
        (np.abs(ratio - codes) <= _OFF).all()
        and codes.max() <= qint8.qmax
        and codes.min() >= qint8.qmin
    )
