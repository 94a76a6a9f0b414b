"""Sampling at computed positions on codes: what grid_sample, warp and deformable conv share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qtune.arith import grid as arith
from qtune.arith.rounding import Int64Array
from qtune.arith_fast import grid as fast
from qtune.arith_fast.held import offset
from qtune.dtype import qint8
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Attrs,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    Operand,
    QConst,
    QValue,
    Value,
)
from qtune.ops.movement.moving import carry, held_constant, initializer, one_scale, operand_value
from qtune.ops.operand_words import GIVE_SCALE, described
from qtune.ops.quant.codes import input_dtype, onnx_type
from qtune.ops.registry import register_kernel

DOMAIN = "qtune"
_FAR = 1 << 30
"""Positions are cut here where nothing else bounds them: far outside of any map, inside int32."""

Pairs = tuple[float, float]
"""Two numbers, for x and for y."""


def emit_positions(
    ctx: ConvertContext,
    codes: QValue,
    elements: Sequence[float],
    base: Any,
    border: Sequence[int] | None = None,
) -> Value:
    """Emit QPositions of codes whose last axis is (x, y).

    ``elements``: what a real 1 moves by, per axis. ``base``: position of a real 0, in 256ths.
    ``border``: (width, height) of the map at whose border positions stop, ``None`` for no stop.
    """
    factors = [arith.position_factor(e * float(np.float32(codes.scale))) for e in elements]
    low, high = ([-_FAR] * 2, [_FAR] * 2)
    if border is not None:
        low, high = [0, 0], [(size - 1) * arith.ONE for size in border]
    m, n = zip(*factors, strict=True)
    constants = {"m": m, "n": n, "base": base, "low": low, "high": high}
    values = [ctx.constant(np.array(v, dtype=np.int64), k) for k, v in constants.items()]
    return ctx.add("QPositions", [codes.value, *values], {}, domain=DOMAIN)


def emit_sample(ctx: ConvertContext, x: QValue, at: Value, nearest: bool = False) -> QValue:
    """Emit the sampling of ``x`` [N, C, H, W] at positions [N, h, w, 2]; it keeps the scale."""
    op_type = "QSampleNearest" if nearest else "QSampleBilinear"
    value = ctx.add(op_type, [x.value, at], {"to": onnx_type(x.dtype)}, domain=DOMAIN)
    low = None if x.code_min is None else min(x.code_min, 0)
    high = None if x.code_max is None else max(x.code_max, 0)
    return replace(x, value=value, code_min=low, code_max=high)


def sampled_map(ctx: ConvertContext, node: FloatNode) -> QValue | None:
    """The map that a sampling node reads, as int8 codes; ``None`` if it is not quantized."""
    x = node.operands[0]
    if isinstance(x, QConst):
        one_scale(node, x)
        x = initializer(ctx, x)
    if not isinstance(x, QValue):
        return None
    if x.dtype != qint8:
        raise ConvertError(
            f"{node.name}: {node.op_type} samples int8 only, its input is {x.dtype}. Give the "
            "operator before it qint8."
        )
    return x


def coordinates(ctx: ConvertContext, node: FloatNode, index: int, what: str) -> QValue:
    """The operand of a sampling node that says where to sample, as codes."""
    operand: Operand | None = node.operands[index]
    if isinstance(operand, QConst):
        one_scale(node, operand)
        return initializer(ctx, operand)
    if isinstance(operand, QValue):
        return operand
    raise ConvertError(
        f"{node.name}: the {what} of {node.op_type} is {described(operand)} while its input "
        f"is quantized; it has to be int16 codes. {GIVE_SCALE}"
    )


def in_float(ctx: ConvertContext, node: FloatNode, domain: str = "") -> Any:
    """The node as it is, where its input is not quantized."""
    rest = [operand_value(ctx, node, operand) for operand in node.operands[1:]]
    attrs = dict(node.attrs)
    return carry(ctx, node, lambda v: ctx.add(node.op_type, [v, *rest], attrs, domain=domain))


def float_positions(real: torch.Tensor, elements: Pairs, base: Pairs) -> torch.Tensor:
    """Positions in 256ths of float coordinates [..., 2], rounded half up, int64."""
    scale = torch.tensor(elements, dtype=torch.float64, device=real.device) * arith.ONE
    origin = torch.tensor(base, dtype=torch.float64, device=real.device)
    exact = (real.double() * scale + origin + 0.5).floor()
    return exact.nan_to_num(nan=-_FAR).clamp(-_FAR, _FAR).long()


def float_nearest(x: torch.Tensor, at: torch.Tensor, border: bool) -> torch.Tensor:
    """The elements of ``x`` [N, C, H, W] nearest to int64 positions [N, h, w, 2]."""
    height, width = x.shape[2:]
    size = torch.tensor([width, height], device=x.device)
    if border:
        at = torch.minimum(at.clamp(min=0), (size - 1) * arith.ONE)
    element = arith.nearest_element(at)
    inside = ((element >= 0) & (element < size)).all(-1)
    column, row = torch.minimum(element.clamp(min=0), size - 1).unbind(-1)
    image = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1)
    taken = x.permute(0, 2, 3, 1)[image, row, column].permute(0, 3, 1, 2)
    return torch.where(inside.unsqueeze(1), taken, torch.zeros((), dtype=x.dtype, device=x.device))


def _positions_reference(attrs: Attrs, codes: Any, *constants: Any) -> Int64Array:
    return arith.positions(codes, *constants)


def _positions_fast(node: KernelNode) -> FastKernel:
    constants = [torch.from_numpy(np.array(node.constants[i])) for i in range(1, 6)]
    zero = offset(input_dtype(node, 0))

    def kernel(*held: torch.Tensor) -> torch.Tensor:
        codes = held[0] if held else held_constant(node.constants[0], node.input_dtypes[0])
        return fast.positions_held(codes.to(torch.int64) - zero, *constants)

    return kernel


def _sampler(
    reference: Callable[[Any, Any], Int64Array],
    held_kernel: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> dict[str, Any]:
    def run(attrs: Attrs, x: Any, at: Any) -> Int64Array:
        return reference(x, at)

    def prepare(node: KernelNode) -> FastKernel:
        fixed = {i: held_constant(a, node.input_dtypes[i]) for i, a in node.constants.items()}

        def kernel(*held: torch.Tensor) -> torch.Tensor:
            given = iter(held)
            x, at = (fixed[i] if i in fixed else next(given) for i in range(2))
            return held_kernel(x, at)

        return kernel

    return {"reference": run, "fast": prepare}


register_kernel(
    HbirKernel("QPositions", DOMAIN, reference=_positions_reference, fast=_positions_fast)
)
register_kernel(
    HbirKernel(
        "QSampleBilinear", DOMAIN, **_sampler(arith.sample_bilinear, fast.sample_bilinear_held)
    )
)
register_kernel(
    HbirKernel("QSampleNearest", DOMAIN, **_sampler(arith.sample_nearest, fast.sample_nearest_held))
)
