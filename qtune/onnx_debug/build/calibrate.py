"""A calibrated model from an optimized one: places, ranges, calibration nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug.build.insert import Inserted, grid_of, with_calibrations
from qtune.onnx_debug.build.march import Fitted
from qtune.onnx_debug.build.place import Place
from qtune.onnx_debug.build.ranges import weight_ranges
from qtune.onnx_debug.calibrated import ACTIVATION

Array = np.ndarray[Any, Any]


def with_ranges(proto: onnx.ModelProto, fit: Fitted, ranges: Mapping[str, np.float32]) -> Inserted:
    """``proto`` with calibration nodes whose thresholds are ``ranges`` (tensor -> range)."""
    weights = weight_ranges(proto, fit.placement.places)

    def grid(place: Place) -> Calibration:
        if place.kind == ACTIVATION:
            return grid_of(np.asarray(ranges[place.root]), place.bits)
        return grid_of(weights[place], place.bits, place.axis)

    return with_calibrations(proto, fit.placement, grid)
