"""Resize by the step rule of the BPU: sizes of both spatial axes, nearest or bilinear."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder

_LINEAR = ("half_pixel", "align_corners", "pytorch_half_pixel")


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    shape, mode = node.shape(), node.attrs["mode"]
    output = node.output_shapes[0]
    coordinates = node.attrs["coordinate_transformation_mode"]
    if output is None or len(shape) != 4 or output[:2] != shape[:2]:
        raise node.refusal("only the two spatial axes of maps [N, C, H, W] can be resized")
    node.only(antialias=0, exclude_outside=0, keep_aspect_ratio_policy="stretch")
    if mode == "nearest":
        node.only(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    elif mode != "linear" or coordinates not in _LINEAR:
        raise node.refusal(
            f"mode {mode!r} with {coordinates!r} has no form here; linear with half_pixel or "
            "align_corners and nearest with asymmetric and floor have"
        )
    elif coordinates == "pytorch_half_pixel" and 1 in output[2:]:
        raise node.refusal("pytorch_half_pixel to one row or column has no form here")
    _check_ratio(node, shape, output)
    corners = coordinates == "align_corners"
    kept = coordinates if corners or mode == "nearest" else "half_pixel"
    attrs = {"axes": [2, 3], "mode": mode, "coordinate_transformation_mode": kept}
    if mode == "nearest":
        attrs["nearest_mode"] = "floor"
    sizes = b.constant(np.array(output[2:], dtype=np.int64), "sizes")
    return b.add("Resize", [node.inputs[0], None, None, sizes], attrs)


def _check_ratio(node: OnnxNode, shape: Any, output: Any) -> None:
    """The step is the ratio of the sizes; a scale that is another one can't be kept."""
    scales = node.constant(2, "scales")
    if scales is None or scales.size == 0:
        return
    for axis in (2, 3):
        if float(np.float32(output[axis] / shape[axis])) != float(scales[axis]):
            raise node.refusal(
                f"the scale {scales[axis]} is not the ratio of the sizes {output[axis]} / "
                f"{shape[axis]}; give the sizes instead"
            )


register_rewrite("Resize", _rewrite)
