"""Ranges of tensors: what the threshold of each calibration node is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.decompose_parts import Bounds
from qtune.onnx_debug.build.insert import DTYPES
from qtune.onnx_debug.build.methods import Magnitudes, Method, needs_histogram
from qtune.onnx_debug.build.observe import observed
from qtune.onnx_debug.build.place import Place
from qtune.onnx_debug.calibrated import ACTIVATION
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.quantizers.fake_quantize import BEYOND, HEADROOM

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """What was seen of each tensor. ``bits``: of its grid. ``held``: tensor -> (bins, most bins) ->
    histogram; without a method that needs one, ``tops`` alone. ``bounds``: tensor -> what its
    values can't leave, within which its threshold gets headroom (numerics.md section 3)."""

    bits: Mapping[str, int]
    tops: dict[str, np.float32] = field(default_factory=dict)
    held: dict[str, dict[tuple[int, int], Magnitudes]] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)

    def ranges(self, method: Method) -> dict[str, np.float32]:
        """Tensor -> threshold by ``method``."""
        return {name: self.range(name, method) for name in self.tops}

    def range(self, name: str, method: Method) -> np.float32:
        """The threshold of one tensor."""
        found = self._seen(name, method)
        return with_headroom(found, *self.bounds[name]) if name in self.bounds else found

    def _seen(self, name: str, method: Method) -> np.float32:
        if needs_histogram(method):
            held = self.held[name][method.bins, method.most_bins]
            return held.range(method, DTYPES[self.bits[name]])
        return self.tops[name]


def with_headroom(threshold: np.float32, low: float, high: float) -> np.float32:
    """Twice the threshold as far as ``high`` goes; data beyond a bound show that it is none."""
    bound = high if threshold <= high * BEYOND else float(np.finfo(np.float32).max)
    return np.float32(max(float(threshold), min(HEADROOM * float(threshold), bound)))


def collect(
    proto: onnx.ModelProto,
    data: CalibrationDataSet,
    places: Sequence[Place],
    methods: Sequence[Method],
) -> Statistics:
    """Run the data once and keep what ``methods`` need of every activation."""
    bits = {place.root: place.bits for place in places if place.kind == ACTIVATION}
    sizes = {(m.bins, m.most_bins) for m in methods if needs_histogram(m)}
    bounds = {place.root: place.bounds for place in places if place.bounds is not None}
    found = Statistics(bits, dict.fromkeys(bits, np.float32(0)), bounds=bounds)
    for name in bits:
        found.held[name] = {size: Magnitudes(*size) for size in sizes}
    for name, array in observed(proto, data, list(bits), "calibrating"):
        top = absmax_of(name, array)
        found.tops[name] = max(found.tops[name], top)
        for held in found.held[name].values():
            held.add(array, top)
    return found


def weight_ranges(proto: onnx.ModelProto, places: Sequence[Place]) -> dict[Place, Array]:
    """absmax of the constants, one for each channel where the place has an axis."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    found = {}
    for place in places:
        if place.kind == ACTIVATION:
            continue
        array = np.abs(numpy_helper.to_array(constants[place.tensor]))
        if not np.isfinite(array).all():
            raise ArgumentError(
                f"the constant {place.tensor!r} holds NaN or infinity; such a model can't be "
                "calibrated"
            )
        rest = tuple(axis for axis in range(array.ndim) if axis != place.axis)
        absmax = array.max(axis=rest, initial=0) if place.axis >= 0 else array.max(initial=0)
        found[place] = np.asarray(absmax, np.float32).reshape(-1)
    return found


def refuse_nan(proto: onnx.ModelProto) -> None:
    """Raise ``ArgumentError`` naming the constants that hold NaN."""
    arrays = ((tensor.name, numpy_helper.to_array(tensor)) for tensor in proto.graph.initializer)
    lost = [name for name, array in arrays if array.dtype.kind == "f" and np.isnan(array).any()]
    if lost:
        raise ArgumentError(
            f"the constants {', '.join(lost)} hold NaN; such a model can't be calibrated. Look at "
            "how it was trained or exported"
        )


class NotFiniteError(ArgumentError):
    """``tensor`` becomes NaN or infinite on the calibration data."""

    def __init__(self, tensor: str, message: str) -> None:
        super().__init__(message)
        self.tensor = tensor


def absmax_of(name: str, array: Array) -> np.float32:
    """Largest magnitude; ``ArgumentError`` naming the tensor for NaN and infinity."""
    top = np.float32(np.abs(array).max(initial=0))
    if not np.isfinite(top):
        raise NotFiniteError(
            name,
            f"the tensor {name!r} becomes NaN or infinite on the calibration data, so it has no "
            "threshold; look at the data, or keep the nodes that use it float32 "
            "(node_config: qtype)",
        )
    return top
