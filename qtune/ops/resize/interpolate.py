"""interpolate, Upsample: nearest or linear, step = in / out; keeps the input's scale.

A sequence [N, C, L] runs as a map of height 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.errors import ExportError
from qtune.ops.gemm.geometry import per_axis
from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import int64, rank_of
from qtune.ops.pool.spatial import on_maps
from qtune.ops.registry import register
from qtune.ops.resize.exact import EXACT_RESIZE, lower_exactly, resize_exactly, taps_of
from qtune.ops.resize.integer import RESIZE_KERNELS
from qtune.ops.resize.stepping import resize_float
from qtune.ops.spec import (
    Bound,
    ExactForm,
    FunctionTarget,
    MarchRule,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)

MODES = {3: ("nearest", "nearest-exact", "linear"), 4: ("nearest", "nearest-exact", "bilinear")}
"""Modes by the number of dimensions."""
OTHERS = {
    "area": "area averages: call F.adaptive_avg_pool2d with the output size",
    "bicubic": "the BPU has no bicubic taps: use bilinear",
    "trilinear": "the BPU resizes maps only: resize height and width, then the depth as a height",
}
"""Remedies for the other modes of torch."""


def _bind(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: bool = False,
) -> Bound:
    rank = rank_of(input) or 4
    _check(mode, antialias, rank)
    attrs = {
        "size": None if size is None else per_axis(size, rank - 2),
        "scale_factor": None if scale_factor is None else per_axis(scale_factor, rank - 2),
        "mode": mode,
        "align_corners": bool(align_corners),
    }
    return Bound((input,), attrs)


def _check(mode: str, antialias: bool, rank: int) -> None:
    if antialias:
        raise NotImplementedError(f"interpolate mode {mode!r} with antialias; leave antialias out")
    if mode in OTHERS:
        raise NotImplementedError(f"interpolate mode {mode!r}: {OTHERS[mode]}")
    if rank not in MODES:
        raise NotImplementedError(
            f"interpolate of a tensor of {rank} dimensions; 3 or 4 are possible"
        )
    if mode not in MODES[rank]:
        known = " or ".join(MODES[rank])
        raise NotImplementedError(f"interpolate mode {mode!r} of {rank} dimensions; use {known}")


def _bind_module(module: nn.Upsample, input: Any) -> Bound:
    return _bind(input, module.size, module.scale_factor, module.mode, module.align_corners)


def _bind_nearest(input: Any, size: Any = None, scale_factor: Any = None) -> Bound:
    return _bind(input, size, scale_factor)


def _bind_bilinear(input: Any, size: Any = None, scale_factor: Any = None) -> Bound:
    return _bind(input, size, scale_factor, "bilinear", True)


def output_size(shape: Sequence[int], attrs: Attrs) -> tuple[int, ...]:
    """Spatial sizes of the result: the given ones, or ``floor(in * scale_factor)``."""
    if attrs["size"] is not None:
        return tuple(int(size) for size in attrs["size"])
    factors = zip(shape[2:], attrs["scale_factor"], strict=True)
    return tuple(math.floor(size * float(factor)) for size, factor in factors)


def float_kernel(
    x: torch.Tensor, *, size: Any, scale_factor: Any, mode: str, align_corners: bool
) -> torch.Tensor:
    """``x`` [N, C, H, W] or [N, C, L] resized with the BPU's step (numerics.md section 3).

    The step is ``in / out``. torch steps by ``1 / scale_factor`` where that is given, and rounds
    its nearest positions in float32, so that results differ from torch's for fractional factors
    (and for nearest by one pixel at a few sizes).
    """
    out = output_size(x.shape, {"size": size, "scale_factor": scale_factor})
    if len(out) == 1:
        wide = "bilinear" if mode == "linear" else mode
        return resize_float(x.unsqueeze(2), (1, *out), wide, align_corners).squeeze(2)
    return resize_float(x, (out[0], out[1]), mode, align_corners)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, attrs = call.input_shapes[0] or (), call.attrs
    if len(shape) not in MODES:
        raise ExportError(
            f"{call.name}: interpolate of a tensor of shape {shape}; only [N, C, H, W] and "
            "[N, C, L] can be exported. Reshape it before."
        )
    out = output_size(shape, attrs)
    sizes = b.constant(int64((1, *out)[-2:]), "sizes")
    onnx = {"axes": [2, 3], "mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    if attrs["align_corners"]:
        onnx["coordinate_transformation_mode"] = "align_corners"
    if attrs["mode"] == "nearest":
        onnx.update(mode="nearest", coordinate_transformation_mode="asymmetric")
        onnx["nearest_mode"] = "floor"
    if attrs["mode"] == "nearest-exact":  # half_pixel, as above
        onnx.update(mode="nearest", nearest_mode="round_prefer_ceil")

    def emit(value: Any, full: tuple[int, ...]) -> Any:
        return b.add("Resize", [value, None, None, sizes], onnx)

    return on_maps(b, call, len(out), emit)


def _exact_kernel(
    scale: float, x: torch.Tensor, *, size: Any, scale_factor: Any, mode: str, align_corners: bool
) -> torch.Tensor:
    attrs = {"size": size, "scale_factor": scale_factor, "mode": mode}
    if mode != "bilinear":
        return float_kernel(x, **attrs, align_corners=align_corners)
    height, width = output_size(x.shape, attrs)
    taps = taps_of(x.shape, (height, width), align_corners)
    return resize_exactly(x, scale, [torch.from_numpy(part) for part in taps])


def _lower_exact(b: Builder, call: LowerCall, scale: float) -> Any:
    shape, attrs = call.input_shapes[0] or (), call.attrs
    if attrs["mode"] != "bilinear" or len(shape) != 4:
        return _lower(b, call)
    height, width = output_size(shape, attrs)
    taps = taps_of(shape, (height, width), attrs["align_corners"])
    return lower_exactly(b, call, scale, taps)


def _flops(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> int:
    """Four taps for each element of a bilinear result, none for nearest."""
    return 4 * prod(output) if "linear" in attrs["mode"] else 0


def _check_bernoulli(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> str | None:
    if attrs["align_corners"]:
        return "align_corners=True; only False is possible"
    for before, after in zip(inputs[0][2:], output[2:], strict=True):
        if not 1 / 256 < after / before <= 256:
            return f"a ratio of {after}/{before}; 1/256 < ratio <= 256"
    return None


def _check_bayes(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> str | None:
    if attrs["align_corners"]:
        return "align_corners=True; only False is possible"
    large = max((*inputs[0][1:], *output[1:]))
    return f"a size of {large}; C, H and W up to 8192" if large > 8192 else None


def _sample(rng: np.random.Generator) -> Sample:
    axes = [2, 2, 1][int(rng.integers(3))]
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(1, 9, axes)))
    mode = [MODES[axes + 2][i] for i in (0, 1, 2, 2)][int(rng.integers(4))]
    size = tuple(int(v) for v in rng.integers(1, 17, axes))
    factor = [(2.0, 2.0), (1.3, 2.3), (3.0, 1.0)][int(rng.integers(3))][:axes]
    by_size = bool(rng.integers(2))
    attrs = {
        "size": size if by_size else None,
        "scale_factor": None if by_size else factor,
        "mode": mode,
        "align_corners": "linear" in mode and bool(rng.integers(2)),
    }
    return Sample((shape,), attrs)


INT8 = ("qint8",)

register(
    OpSpec(
        name="interpolate",
        family="resize",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            ModuleTarget(nn.Upsample, _bind_module),
            ModuleTarget(nn.UpsamplingNearest2d, _bind_module),
            ModuleTarget(nn.UpsamplingBilinear2d, _bind_module),
            FunctionTarget(F.interpolate, _bind),
            FunctionTarget(F.upsample, _bind),
            FunctionTarget(F.upsample_nearest, _bind_nearest),
            FunctionTarget(F.upsample_bilinear, _bind_bilinear),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(*RESIZE_KERNELS, EXACT_RESIZE),
        march=(
            MarchRule(("bernoulli",), INT8, INT8, _check_bernoulli),
            MarchRule(("bayes",), INT8, INT8, _check_bayes),
            MarchRule(("nash",), INT8, INT8),
        ),
        flops=_flops,
        exact=ExactForm(_exact_kernel, _lower_exact),
        sample=_sample,
        doc="resized by nearest or linear, step = in / out",
    )
)
