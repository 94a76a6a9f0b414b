"""warp: a map sampled at absolute positions (``qtune.nn.GridSample``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qtune.dtype import qint16
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
)
from qtune.ops.registry import register
from qtune.ops.resize.exact_sampling import Geometry, lower_exactly, sample_exactly
from qtune.ops.resize.grid_sample import PADDING_MODES, SAMPLED, flops
from qtune.ops.resize.layers import GridSample, warp
from qtune.ops.resize.sampling import (
    coordinates,
    emit_positions,
    emit_sample,
    in_float,
    sampled_map,
)
from qtune.ops.spec import (
    Bound,
    ExactForm,
    FunctionTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(module: GridSample, x: Any, grid: Any) -> Bound:
    return Bound((x, grid), {"mode": module.mode, "padding_mode": module.padding_mode})


def _bind_function(x: Any, grid: Any, *, mode: str, padding_mode: str) -> Bound:
    return Bound((x, grid), {"mode": mode, "padding_mode": padding_mode})


def _lower(b: Builder, call: LowerCall) -> Any:
    attrs = {"mode": "linear", "padding_mode": call.attrs["padding_mode"]}
    return b.add("Warp", list(call.operands), attrs, domain="qtune")


def _run_float(attrs: Attrs, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return warp(x, grid, mode="bilinear", padding_mode=attrs["padding_mode"])


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    x = sampled_map(ctx, node)
    if x is None:
        return in_float(ctx, node, "qtune")
    height, width = (node.input_shapes[0] or ())[2:]
    border = (width, height) if node.attrs["padding_mode"] == "border" else None
    grid = coordinates(ctx, node, 1, "grid")
    return emit_sample(ctx, x, emit_positions(ctx, grid, (1.0, 1.0), (0, 0), border))


def _exact_kernel(
    scale: float, x: torch.Tensor, grid: torch.Tensor, *, mode: str, padding_mode: str
) -> torch.Tensor:
    return sample_exactly(scale, x, grid, _geometry_of(x.shape, padding_mode))


def _lower_exact(b: Builder, call: LowerCall, scale: float) -> Any:
    shape = call.input_shapes[0] or ()
    return lower_exactly(b, call, scale, _geometry_of(shape, call.attrs["padding_mode"]))


def _geometry_of(shape: Sequence[int], padding_mode: str) -> Geometry:
    return Geometry.of((1.0, 1.0), (0, 0), shape[2:], padding_mode)


def _reference(attrs: Attrs, x: Any, grid: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = _run_float(attrs, *map(torch.from_numpy, (x, grid))).numpy()
    return found


def _fast(node: KernelNode) -> FastKernel:
    fixed = {i: torch.from_numpy(np.array(a)) for i, a in node.constants.items()}

    def kernel(*given: torch.Tensor) -> torch.Tensor:
        rest = iter(given)
        x, grid = (fixed[i] if i in fixed else next(rest) for i in range(2))
        return _run_float(node.attrs, x, grid)

    return kernel


def _sample(rng: np.random.Generator) -> Sample:
    batch, channels, *sizes = (int(v) for v in (*rng.integers(1, 4, 2), *rng.integers(1, 9, 4)))
    attrs = {"mode": "bilinear", "padding_mode": PADDING_MODES[int(rng.integers(2))]}
    return Sample(((batch, channels, *sizes[:2]), (batch, *sizes[2:], 2)), attrs)


register(
    OpSpec(
        name="warp",
        family="resize",
        rule=Rule.INPUT_SCALE,
        roles=("input", "grid"),
        targets=(ModuleTarget(GridSample, _bind), FunctionTarget(warp, _bind_function)),
        float_kernel=warp,
        lower=_lower,
        kernels=(
            HbirKernel(
                "Warp",
                "qtune",
                run_float=_run_float,
                convert=_convert,
                reference=_reference,
                fast=_fast,
            ),
        ),
        wants={"grid": qint16},
        march=SAMPLED,
        flops=flops,
        exact=ExactForm(_exact_kernel, _lower_exact, level=4),
        sample=_sample,
        doc="a map sampled at absolute positions, bilinear",
    )
)
