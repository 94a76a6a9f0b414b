"""grid_sample: a map sampled at normalised positions; data int8, grid int16, input's scale."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import has_torch_function

from qtune.arith.grid import ONE
from qtune.dtype import qint16
from qtune.errors import ExportError
from qtune.ops.kernel import Attrs, Builder, ConvertContext, FloatNode, HbirKernel, LowerCall
from qtune.ops.movement.moving import rank_of
from qtune.ops.registry import register
from qtune.ops.resize.exact_sampling import Geometry, lower_exactly, sample_exactly
from qtune.ops.resize.sampling import (
    Pairs,
    coordinates,
    emit_positions,
    emit_sample,
    float_nearest,
    float_positions,
    in_float,
    sampled_map,
)
from qtune.ops.spec import Bound, ExactForm, FunctionTarget, MarchRule, OpSpec, Rule, Sample

MODES = {"bilinear": "linear", "nearest": "nearest"}
"""torch's name -> ONNX's."""
PADDING_MODES = ("zeros", "border")
MAX_SIDE, MAX_AREA = 1024, 720 * 1024
INT8, INT16 = ("qint8",), ("qint16",)


def check_modes(op: str, mode: str, padding_mode: str) -> None:
    """Refuse by name what the BPU does not sample by."""
    if mode not in MODES:
        raise NotImplementedError(f"{op} mode {mode!r}; the BPU samples by {' or '.join(MODES)}")
    if padding_mode not in PADDING_MODES:
        raise NotImplementedError(
            f"{op} padding_mode {padding_mode!r}; the BPU pads with {' or '.join(PADDING_MODES)}"
        )


def _bind(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: Any = None,
) -> Bound:
    check_modes("grid_sample", mode, padding_mode)
    rank = rank_of(input)
    if rank not in (None, 4):
        raise NotImplementedError(f"grid_sample of a tensor of {rank} dimensions; 4 are possible")
    attrs = {"mode": mode, "padding_mode": padding_mode, "align_corners": bool(align_corners)}
    return Bound((input, grid), attrs)


def geometry(size: Sequence[int], align_corners: bool) -> tuple[Pairs, Pairs]:
    """(elements that a coordinate of 1 moves by, position of coordinate 0 in 256ths), (x, y)."""
    height, width = size
    reach = (width, height)
    if align_corners:
        reach = (width - 1, height - 1)
    half = ONE // 2
    return (reach[0] / 2, reach[1] / 2), ((width - 1) * half, (height - 1) * half)


def float_kernel(
    x: torch.Tensor, grid: torch.Tensor, *, mode: str, padding_mode: str, align_corners: bool
) -> torch.Tensor:
    """``x`` [N, C, H, W] at ``grid`` [N, h, w, 2]: torch's own for bilinear.

    For nearest, positions are rounded to 256ths first, half up (numerics.md section 3).
    """
    if mode != "nearest" or has_torch_function((x, grid)):  # recorded as torch's own call
        return F.grid_sample(x, grid, mode, padding_mode, align_corners)
    at = float_positions(grid, *geometry(x.shape[2:], align_corners))
    return float_nearest(x, at, padding_mode == "border")


def _lower(b: Builder, call: LowerCall) -> Any:
    shape, attrs = call.input_shapes[0] or (), call.attrs
    if len(shape) != 4:
        raise ExportError(
            f"{call.name}: grid_sample of a tensor of shape {shape}; only [N, C, H, W] can be "
            "exported"
        )
    onnx = {
        "mode": MODES[attrs["mode"]],
        "padding_mode": attrs["padding_mode"],
        "align_corners": int(attrs["align_corners"]),
    }
    return b.add("GridSample", list(call.operands), onnx)


def _run_float(attrs: Attrs, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    mode = {onnx: name for name, onnx in MODES.items()}[attrs.get("mode", "linear")]
    return float_kernel(
        x,
        grid,
        mode=mode,
        padding_mode=attrs.get("padding_mode", "zeros"),
        align_corners=bool(attrs.get("align_corners", 0)),
    )


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    x = sampled_map(ctx, node)
    if x is None:
        return in_float(ctx, node)
    height, width = (node.input_shapes[0] or ())[2:]
    elements, base = geometry((height, width), bool(node.attrs.get("align_corners", 0)))
    is_border = node.attrs.get("padding_mode", "zeros") == "border"
    border = (width, height) if is_border else None
    at = emit_positions(ctx, coordinates(ctx, node, 1, "grid"), elements, base, border)
    return emit_sample(ctx, x, at, node.attrs.get("mode", "linear") == "nearest")


def _exact_kernel(
    scale: float,
    x: torch.Tensor,
    grid: torch.Tensor,
    *,
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> torch.Tensor:
    attrs = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    if mode != "bilinear":
        return float_kernel(x, grid, **attrs)  # type: ignore[arg-type]
    return sample_exactly(scale, x, grid, _geometry_of(x.shape, attrs))


def _lower_exact(b: Builder, call: LowerCall, scale: float) -> Any:
    shape = call.input_shapes[0] or ()
    if call.attrs["mode"] != "bilinear" or len(shape) != 4:
        return _lower(b, call)
    return lower_exactly(b, call, scale, _geometry_of(shape, call.attrs))


def _geometry_of(shape: Sequence[int], attrs: Attrs) -> Geometry:
    size = shape[2:]
    return Geometry.of(*geometry(size, attrs["align_corners"]), size, attrs["padding_mode"])


def flops(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> int:
    """Four taps for each element of a bilinear result, none for nearest."""
    return 4 * prod(output) if attrs["mode"] == "bilinear" else 0


def check_size(attrs: Attrs, inputs: Sequence[Any], output: Sequence[int]) -> str | None:
    """Maps up to 1024 each way and 720 * 1024 elements (toolchain_facts 4.2)."""
    height, width = inputs[0][-2:]
    if max(height, width) > MAX_SIDE or height * width > MAX_AREA:
        return (
            f"a map of {height} x {width}; up to {MAX_SIDE} each way and {MAX_AREA} elements are "
            "possible"
        )
    return None


SAMPLED = (
    MarchRule(("bayes",), INT8, INT8, operands={"grid": ("qint8", "qint16")}),
    MarchRule(("nash",), INT8, INT8, check_size, operands={"grid": INT16}),
)


def _sample(rng: np.random.Generator) -> Sample:
    batch, channels, *sizes = (int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(1, 9, 4)))
    attrs = {
        "mode": ("bilinear", "nearest")[int(rng.integers(2))],
        "padding_mode": PADDING_MODES[int(rng.integers(2))],
        "align_corners": bool(rng.integers(2)),
    }
    return Sample(((batch, channels, *sizes[:2]), (batch, *sizes[2:], 2)), attrs)


register(
    OpSpec(
        name="grid_sample",
        family="resize",
        rule=Rule.INPUT_SCALE,
        roles=("input", "grid"),
        targets=(FunctionTarget(F.grid_sample, _bind),),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(HbirKernel("GridSample", run_float=_run_float, convert=_convert),),
        wants={"grid": qint16},
        march=SAMPLED,
        flops=flops,
        exact=ExactForm(_exact_kernel, _lower_exact, level=4),
        sample=_sample,
        doc="a map sampled at normalised positions, bilinear or nearest",
    )
)
