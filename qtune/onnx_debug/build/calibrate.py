"""A calibrated model from an optimized one: places, ranges, calibration nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtune.dtype import qint8
from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug.build.constant_grids import grid_of_values
from qtune.onnx_debug.build.fixed import fixed_grid
from qtune.onnx_debug.build.insert import Inserted, grid_of, with_calibrations
from qtune.onnx_debug.build.march import Fitted
from qtune.onnx_debug.build.place import Place
from qtune.onnx_debug.build.ranges import weight_ranges
from qtune.onnx_debug.calibrated import ACTIVATION

Array = np.ndarray[Any, Any]


def with_ranges(proto: onnx.ModelProto, fit: Fitted, ranges: Mapping[str, np.float32]) -> Inserted:
    """``proto`` with calibration nodes whose thresholds are ``ranges`` (tensor -> range)."""
    weights = weight_ranges(proto, fit.placement.places)
    known = _named(proto, weights) if fit.kept.grids else {}

    def grid(place: Place) -> Calibration:
        if place.kind == ACTIVATION and place.root in fit.fixed:
            return fixed_grid(fit.fixed[place.root], place.bits)
        if place.kind == ACTIVATION:
            return grid_of(np.asarray(ranges[place.root]), place.bits)
        return known.get(place) or grid_of(weights[place], place.bits, place.axis)

    made = with_calibrations(proto, fit.placement, grid)
    fit.kept.restored(made.proto, fit.placement.moved)
    return made


def _named(proto: onnx.ModelProto, places: Iterable[Place]) -> dict[Place, Calibration]:
    """Grids of constants which the file rounded without naming the grid."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    found = {}
    for place in places:
        if place.bits == qint8.bits:
            array = numpy_helper.to_array(constants[place.tensor])
            found[place] = grid_of_values(array, place.axis)
    return {place: grid for place, grid in found.items() if grid is not None}
