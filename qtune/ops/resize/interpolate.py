"""interpolate, Upsample: nearest or bilinear, step = in / out; keeps the input's scale."""

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
from qtune.ops.kernel import Attrs, Builder, LowerCall
from qtune.ops.movement.moving import int64, rank_of
from qtune.ops.pool.windows import pair
from qtune.ops.registry import register
from qtune.ops.resize.integer import RESIZE_KERNELS
from qtune.ops.resize.stepping import resize_float
from qtune.ops.spec import Bound, FunctionTarget, MarchRule, ModuleTarget, OpSpec, Rule, Sample

MODES = ("nearest", "bilinear")


def _bind(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: bool = False,
) -> Bound:
    if mode not in MODES or antialias:
        extra = " with antialias" if antialias else ""
        raise NotImplementedError(
            f"interpolate mode {mode!r}{extra}; the BPU resizes by {' or '.join(MODES)}"
        )
    rank = rank_of(input)
    if rank not in (None, 4):
        raise NotImplementedError(f"interpolate of a tensor of {rank} dimensions; 4 are possible")
    attrs = {
        "size": None if size is None else pair(size),
        "scale_factor": None if scale_factor is None else pair(scale_factor),
        "mode": mode,
        "align_corners": bool(align_corners),
    }
    return Bound((input,), attrs)


def _bind_module(module: nn.Upsample, input: Any) -> Bound:
    return _bind(input, module.size, module.scale_factor, module.mode, module.align_corners)


def _bind_nearest(input: Any, size: Any = None, scale_factor: Any = None) -> Bound:
    return _bind(input, size, scale_factor)


def _bind_bilinear(input: Any, size: Any = None, scale_factor: Any = None) -> Bound:
    return _bind(input, size, scale_factor, "bilinear", True)


def output_size(shape: Sequence[int], attrs: Attrs) -> tuple[int, int]:
    """(height, width) of the result: the given size, or ``floor(in * scale_factor)``."""
    if attrs["size"] is not None:
        height, width = attrs["size"]
        return int(height), int(width)
    down, across = attrs["scale_factor"]
    return math.floor(shape[-2] * float(down)), math.floor(shape[-1] * float(across))


def float_kernel(
    x: torch.Tensor, *, size: Any, scale_factor: Any, mode: str, align_corners: bool
) -> torch.Tensor:
    """``x`` [N, C, H, W] resized with the BPU's step ``in / out`` (numerics.md section 3).

    torch steps by ``1 / scale_factor`` where that is given, and rounds its nearest positions in
    float32, so that results differ from torch's for fractional factors (and for nearest by
    one pixel at a few sizes).
    """
    out = output_size(x.shape, {"size": size, "scale_factor": scale_factor})
    return resize_float(x, out, mode, align_corners)


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, attrs = call.input_shapes[0] or (), call.attrs
    if len(shape) != 4:
        raise ExportError(
            f"{call.name}: interpolate of a tensor of shape {shape}; only [N, C, H, W] can be "
            "exported. Reshape it to 4 dimensions before."
        )
    sizes = b.constant(int64(output_size(shape, attrs)), "sizes")
    onnx = {"axes": [2, 3], "mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    if attrs["align_corners"]:
        onnx["coordinate_transformation_mode"] = "align_corners"
    if attrs["mode"] == "nearest":
        onnx.update(mode="nearest", coordinate_transformation_mode="asymmetric")
        onnx["nearest_mode"] = "floor"
    return b.add("Resize", [call.operands[0], None, None, sizes], onnx)


def _flops(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> int:
    """Four taps for each element of a bilinear result, none for nearest."""
    return 4 * prod(output) if attrs["mode"] == "bilinear" else 0


def _check_bernoulli(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> str | None:
    if attrs["align_corners"]:
        return "align_corners=True; only False is possible"
    for before, after in zip(inputs[0][-2:], output[-2:], strict=True):
        if not 1 / 256 < after / before <= 256:
            return f"a ratio of {after}/{before}; 1/256 < ratio <= 256"
    return None


def _check_bayes(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> str | None:
    if attrs["align_corners"]:
        return "align_corners=True; only False is possible"
    large = max((*inputs[0][1:], *output[1:]))
    return f"a size of {large}; C, H and W up to 8192" if large > 8192 else None


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(1, 9, 2)))
    mode = MODES[int(rng.integers(2))]
    size = tuple(int(v) for v in rng.integers(1, 17, 2))
    factor = [(2.0, 2.0), (1.3, 2.3), (3.0, 1.0)][int(rng.integers(3))]
    by_size = bool(rng.integers(2))
    attrs = {
        "size": size if by_size else None,
        "scale_factor": None if by_size else factor,
        "mode": mode,
        "align_corners": mode == "bilinear" and bool(rng.integers(2)),
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
        kernels=RESIZE_KERNELS,
        march=(
            MarchRule(("bernoulli",), INT8, INT8, _check_bernoulli),
            MarchRule(("bayes",), INT8, INT8, _check_bayes),
            MarchRule(("nash",), INT8, INT8),
        ),
        flops=_flops,
        sample=_sample,
        doc="resized by nearest or bilinear, step = in / out",
    )
)
