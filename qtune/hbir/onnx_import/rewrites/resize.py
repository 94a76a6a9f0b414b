"""Resize: by the rule of the BPU where it has one, else elements gathered or matrices of taps.

The BPU resizes the two axes of a map, nearest or bilinear, with the step ``in / out``. Any other
nearest Resize moves elements (Gather); any other linear or cubic one is a product with a constant
matrix for each axis, which runs in float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.arith.resize import nearest_index
from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.positions import COORDINATES, Axis, Taps, nearest
from qtune.ops.kernel import Builder, Value

_LINEAR = ("half_pixel", "align_corners", "pytorch_half_pixel")
_MAP = frozenset({2, 3})
"""The axes of a map that the BPU resizes."""


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    mode, coordinates = node.attrs["mode"], node.attrs["coordinate_transformation_mode"]
    if coordinates not in COORDINATES:
        raise node.refusal(
            f"coordinate_transformation_mode={coordinates!r} has no form here, only "
            f"{', '.join(COORDINATES)}. Export the model without regions of interest"
        )
    axes = _axes(node)
    if not axes:
        return b.add("Identity", [node.inputs[0]])
    if mode == "nearest":
        return _nearest(b, node, axes, coordinates)
    if _is_bilinear(node, axes, coordinates):
        kept = coordinates if coordinates == "align_corners" else "half_pixel"
        return _on_bpu(b, node, {"mode": mode, "coordinate_transformation_mode": kept})
    return _by_matrices(b, node, axes)


def _axes(node: OnnxNode) -> dict[int, Axis]:
    """The axes whose size or position changes."""
    shape, output = node.shape(), node.output_shapes[0]
    if output is None:
        raise node.refusal("its sizes are computed while the model runs; make them constant")
    scales = _scales(node, shape, output)
    found = {
        axis: Axis(before, after, scale)
        for axis, (before, after, scale) in enumerate(zip(shape, output, scales, strict=True))
    }
    changed = {axis: of for axis, of in found.items() if of.before != of.after or of.scale != 1.0}
    if node.attrs["coordinate_transformation_mode"] == "align_corners":
        for of in changed.values():
            _check_ratio(node, of)
    return changed


def _check_ratio(node: OnnxNode, axis: Axis) -> None:
    """Runtimes differ in where the corners of a size lie that is no whole number."""
    if not axis.is_ratio():
        raise node.refusal(
            f"with align_corners the scale {axis.scale} has to be the ratio of the sizes "
            f"{axis.after} / {axis.before}; give the sizes instead"
        )


def _scales(node: OnnxNode, shape: tuple[int, ...], output: tuple[int, ...]) -> list[float]:
    """The scale of every axis: the file's, else the ratio of the sizes."""
    ratios = [after / before for before, after in zip(shape, output, strict=True)]
    named = [axis % len(shape) for axis in node.attrs.get("axes", range(len(shape)))]
    stated = node.constant(2, "scales")
    if stated is not None and stated.size:
        for axis, scale in zip(named, stated, strict=True):
            ratios[axis] = float(scale)
        return ratios
    policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
    sizes = node.constant(3, "sizes")
    if policy != "stretch" and sizes is not None:
        wanted = [int(size) / shape[axis] for axis, size in zip(named, sizes, strict=True)]
        one = min(wanted) if policy == "not_larger" else max(wanted)
        ratios = [one if axis in named else 1.0 for axis in range(len(shape))]
    return ratios


def _nearest(b: Builder, node: OnnxNode, axes: dict[int, Axis], coordinates: str) -> Value:
    rounding = node.attrs.get("nearest_mode", "round_prefer_floor")
    indices = {axis: nearest(of, coordinates, rounding) for axis, of in axes.items()}
    for centered in (False, True):
        same = (nearest_index(of.before, of.after, centered) for of in axes.values())
        alike = (np.array_equal(a, c) for a, c in zip(indices.values(), same, strict=True))
        if len(node.shape()) == 4 and set(axes) <= _MAP and all(alike):
            return _on_bpu(b, node, _NEAREST[centered])
    value: Any = node.inputs[0]
    for axis, index in indices.items():
        value = b.add("Gather", [value, b.constant(index, "indices")], {"axis": axis})
    return value


_NEAREST = {
    False: {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    },
    True: {
        "mode": "nearest",
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_ceil",
    },
}
"""The two forms of the BPU by whether the middle of an element is taken."""


def _is_bilinear(node: OnnxNode, axes: dict[int, Axis], coordinates: str) -> bool:
    """Whether the BPU's bilinear rule is that of the node."""
    if node.attrs["mode"] != "linear" or len(node.shape()) != 4 or not set(axes) <= _MAP:
        return False
    if coordinates not in _LINEAR or not all(of.is_ratio() for of in axes.values()):
        return False
    if node.attrs.get("antialias", 0) and any(of.after < of.before for of in axes.values()):
        return False
    if node.attrs.get("exclude_outside", 0):
        return False
    return coordinates != "pytorch_half_pixel" or all(of.after > 1 for of in axes.values())


def _on_bpu(b: Builder, node: OnnxNode, attrs: dict[str, Any]) -> Value:
    sizes = b.constant(np.array((node.output_shapes[0] or ())[2:], dtype=np.int64), "sizes")
    return b.add("Resize", [node.inputs[0], None, None, sizes], {"axes": [2, 3], **attrs})


def _by_matrices(b: Builder, node: OnnxNode, axes: dict[int, Axis]) -> Value:
    taps = Taps(
        node.attrs["mode"],
        node.attrs["coordinate_transformation_mode"],
        float(node.attrs.get("cubic_coeff_a", -0.75)),
        bool(node.attrs.get("antialias", 0)),
        bool(node.attrs.get("exclude_outside", 0)),
    )
    value: Any = node.inputs[0]
    last = len(node.shape()) - 1
    for axis, of in axes.items():
        matrix = taps.matrix(of)
        if axis == last - 1:
            value = b.add("MatMul", [b.constant(matrix, "rows"), value])
            continue
        order = [i for i in range(last + 1) if i != axis]
        back = [*range(axis), last, *range(axis, last)]
        if axis != last:
            value = b.add("Transpose", [value], {"perm": [*order, axis]})
        value = b.add("MatMul", [value, b.constant(np.ascontiguousarray(matrix.T), "columns")])
        if axis != last:
            value = b.add("Transpose", [value], {"perm": back})
    return value


register_rewrite("Resize", _rewrite)
