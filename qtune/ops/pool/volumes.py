"""Pools of volumes: a window is a product of intervals, so planes are pooled, then the depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qtune.dtype import qint16
from qtune.ops.gemm.geometry import per_axis
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import int64
from qtune.ops.spec import Bound, DecomposeBuilder, Sample

Emit = Callable[[Any, tuple[int, ...]], Any]
"""``emit(value, shape)``: emits the pool of a value of shape [N, C, H, W]."""

AXES = 3
GEOMETRY = ("kernel_size", "stride", "padding", "dilation", "output_size")
_NEUTRAL: Mapping[str, Any] = {
    "kernel_size": 1,
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "output_size": None,
}


def per_volume_axis(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a pool with one number per axis (depth, height, width)."""
    return {k: per_axis(v, AXES) if k in GEOMETRY else v for k, v in attrs.items()}


def plane_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of the pool over height and width."""
    return {k: v[1:] if k in GEOMETRY else v for k, v in attrs.items()}


def depth_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of the pool over the depth, on maps [depth, height * width]."""
    return {k: (v[0], _NEUTRAL[k]) if k in GEOMETRY else v for k, v in attrs.items()}


def on_volumes(b: Builder, call: LowerCall, plane: Emit, depth: Emit) -> Any:
    """Emit a pool of [N, C, D, H, W] or [C, D, H, W] as two pools of maps."""
    shape, out = call.input_shapes[0] or (), call.output_shape
    views, last = _views(shape, out)
    value = call.operands[0]
    for index, (view, emit) in enumerate(zip(views, (plane, depth), strict=True)):
        value = b.add("Reshape", [value, b.constant(int64(view), f"shape{index}")])
        value = emit(value, (1, *view[1:]))
    return b.add("Reshape", [value, b.constant(int64(last), "shape")])


def decompose_average(
    builder: DecomposeBuilder, bound: Bound, op: str, plane: dict[str, Any], depth: dict[str, Any]
) -> Any:
    """Averages over planes in qint16, then over the depth."""
    (x,) = bound.tensors
    shape = builder.shape(x)
    lead = (-1,) if len(shape) == AXES + 2 else (1,)
    channels, depths, height, width = shape[-4:]
    maps = {"shape": (*lead, channels * depths, height, width)}
    value = builder.call("reshape", (x,), maps, part="planes")
    value = builder.call(op, (value,), plane, part="plane", forced_dtype=qint16)
    rows, columns = builder.shape(value)[-2:]
    lines = {"shape": (*lead, channels, depths, rows * columns)}
    value = builder.call("reshape", (value,), lines, part="lines")
    value = builder.call(op, (value,), depth, part="depth")
    result = (channels, builder.shape(value)[-2], rows, columns)
    last = {"shape": (-1, *result) if len(shape) == AXES + 2 else result}
    return builder.call("reshape", (value,), last, part="volume")


def _views(
    shape: tuple[int, ...], out: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]:
    """Shapes of the maps of planes, of the maps of lines, and of the result."""
    lead = -1 if len(shape) == AXES + 2 else 1
    channels, depth, height, width = shape[-4:]
    planes = (lead, channels * depth, height, width)
    lines = (lead, channels, depth, out[-2] * out[-1])
    return (planes, lines), (-1, *out[1:]) if len(shape) == AXES + 2 else out


def sample_windows(rng: np.random.Generator, dilated: bool) -> Sample:
    """A random pool with strides."""
    kernel = tuple(int(v) for v in rng.integers(1, 4, AXES))
    attrs: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": tuple(int(v) for v in rng.integers(1, 3, AXES)),
        "padding": tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel),
        "ceil_mode": bool(rng.integers(2)),
    }
    if dilated:
        attrs["dilation"] = tuple(int(v) for v in rng.integers(1, 3, AXES))
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(5, 8, AXES)))
    return Sample((shape[int(rng.integers(2)) :],), attrs)


def sample_adaptive(rng: np.random.Generator) -> Sample:
    """A random pool to a given size."""
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(1, 7, AXES)))
    depth, height, width = (int(v) for v in rng.integers(1, 6, AXES))
    size = [(1, 1, 1), (depth, height, width), (depth, None, width)][int(rng.integers(3))]
    return Sample((shape,), {"output_size": size})
