"""Seeded random data for checks that have no calibration data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qtune.errors import ArgumentError
from qtune.onnx_debug.calibrated import Port
from qtune.onnx_debug.data import Array, CalibrationDataSet

ITEMS = 2
_SEED = 0


def random_data(inputs: Sequence[Port], items: int = ITEMS) -> CalibrationDataSet:
    """``items`` items of random data, the same in each call: normal numbers, 0 and 1 for integers.

    A free first size is 1. Raises ``ArgumentError`` for other free sizes.
    """
    rng = np.random.default_rng(_SEED)
    return CalibrationDataSet(
        {port.name: [_array(rng, port) for _ in range(items)] for port in inputs}, inputs
    )


def _array(rng: np.random.Generator, port: Port) -> Array:
    if port.shape is None or None in port.shape[1:]:
        raise ArgumentError(
            f"random data: input {port.name!r} has the shape {port.shape}; give its sizes as "
            f"input_dict={{{port.name!r}: {{'input_shape': [...]}}}}"
        )
    shape = tuple(1 if size is None else size for size in port.shape)
    if port.dtype.kind == "f":
        return rng.normal(0, 1, shape).astype(port.dtype)
    return rng.integers(0, 2, shape).astype(port.dtype)
