"""prelu: ``x`` where ``x > 0``, else ``weight[channel] * x`` (numerics.md section 3).

Both branches share one shift in each channel. It is taken from the smaller multiplier, that of the
slope: taken from the larger one, a slope of 0.25 would be left with 6 bits, which costs up to 128
steps of an int16 result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith.requantize import (
    HIGH_PRECISION_BITS,
    multiplier_shift,
    rescale,
    scaled_integer,
)
from qtune.arith_fast.held import channels_last, offset
from qtune.dtype import QuantDType
from qtune.errors import ConvertError
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import output_elements
from qtune.ops.elementwise.fast import clipped, requantizer, run_everywhere, taker
from qtune.ops.elementwise.operands import Deferred, codes, copy_node, is_plain
from qtune.ops.elementwise.scaling import LARGEST_SHIFT
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
    QConst,
    Value,
)
from qtune.ops.operand_words import GIVE_WEIGHT_SCALE, described
from qtune.ops.quant.codes import input_dtype, stored
from qtune.ops.quant.precision import multiplier_bits
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    FunctionTarget,
    MethodTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)

Array = np.ndarray[Any, Any]


def _bind(input: Any, weight: Any) -> Bound:
    return Bound((input, weight))


def _bind_module(module: nn.PReLU, input: Any) -> Bound:
    return Bound((input, None))


def _lower(b: Builder, call: LowerCall) -> Any:
    return b.add("PRelu", call.operands, domain="qtune")


def _run_float(attrs: Attrs, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.prelu(x, weight)


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    if is_plain(node):
        return copy_node(ctx, node, domain="qtune")
    x, slope = codes(ctx, node, 0), node.operands[1]
    if not isinstance(slope, QConst):
        raise ConvertError(
            f"{node.name}: the slopes of prelu must be a quantized constant and are "
            f"{described(slope)}. {GIVE_WEIGHT_SCALE}"
        )
    weight = slope
    trailing = max(len(node.output_shape) - 2, 0)

    def channels(ctx: ConvertContext, values: Array, name: str) -> Value:
        return ctx.constant(values.reshape(-1, *[1] * trailing), name)

    def emit(ctx: ConvertContext, scale: float, dtype: QuantDType, attrs: dict[str, int]) -> Value:
        m_positive, m_negative, n = multipliers(ctx, x.scale / scale, weight.scale)
        inputs = [
            x.value,
            channels(ctx, stored(weight.codes.reshape(-1), weight.dtype), "slope"),
            channels(ctx, m_positive, "m_positive"),
            channels(ctx, m_negative, "m_negative"),
            channels(ctx, n, "n"),
        ]
        return ctx.add("QPRelu", inputs, attrs, domain="qtune")

    return Deferred(emit)


def multipliers(
    ctx: ConvertContext, factor: float, slope_scales: Array
) -> tuple[Array, Array, Array]:
    """Multipliers of x and of x times the slope, and their shift, for each channel; int64 arrays.

    ``factor``: the input's scale in output scales.
    """
    bits, scales = multiplier_bits(ctx), np.atleast_1d(slope_scales).astype(np.float64)
    rows = [_multipliers(factor, float(s), bits) for s in scales]
    table = np.array(rows, dtype=np.int64)
    return table[:, 0], table[:, 1], table[:, 2]


def _multipliers(factor: float, slope_scale: float, bits: int) -> tuple[int, int, int]:
    # Larger factors saturate every output; these can't overflow 64 bits.
    steep = min(factor * slope_scale, 2.0**32)
    factor = min(factor, 2.0**32)
    _, n = multiplier_shift(min(factor, steep), bits)
    _, n_larger = multiplier_shift(factor, bits)
    _, n_fits = multiplier_shift(steep, HIGH_PRECISION_BITS)
    # 10 bits more than x needs: what a smaller slope then loses is below an eighth of a step.
    n = max(0, min(n, LARGEST_SHIFT, n_larger + 10, n_fits))
    return scaled_integer(factor, n), scaled_integer(steep, n), n


def _reference(
    attrs: Attrs, x: Array, slope: Array, m_positive: Array, m_negative: Array, n: Array
) -> Array:
    chosen = np.where(x < 0, x * slope * m_negative, x * m_positive)
    return clipped(attrs, rescale(chosen, 1, n))


def _fast(node: KernelNode) -> FastKernel:
    take = taker(node, (0,))
    dtype = input_dtype(node, 0)
    zero, bound = offset(dtype), -dtype.qmin
    slope, m_positive, m_negative, n = (
        node.constants[index].astype(np.int64).reshape(-1) for index in (1, 2, 3, 4)
    )
    # Choosing and rounding may change places: each branch is a requantize of its own.
    above = requantizer(node, m_positive, n, bound=bound, zero=zero)
    below = requantizer(node, slope * m_negative, n, bound=bound, zero=zero)

    def kernel(*args: torch.Tensor) -> torch.Tensor:
        (x,) = take(args)
        return channels_last(torch.where(x < zero, below(x), above(x)))

    return kernel


def _sample(rng: np.random.Generator) -> Sample:
    channels = int(rng.integers(1, 6))
    weight = channels if rng.integers(2) else 1
    size = int(rng.integers(1, 7))
    shape = ((2, channels, size, size), (2, channels, size), (3, channels))[int(rng.integers(3))]
    return Sample((shape, (weight,)))


register(
    OpSpec(
        name="prelu",
        family="activation",
        rule=Rule.OWN_SCALE,
        roles=("input", "weight"),
        targets=(
            ModuleTarget(nn.PReLU, _bind_module, {"weight": "weight"}),
            FunctionTarget(torch.prelu, _bind),
            MethodTarget("prelu", _bind),
        ),
        float_kernel=F.prelu,
        lower=_lower,
        kernels=(
            run_everywhere(HbirKernel("PRelu", "qtune", run_float=_run_float, convert=_convert)),
            HbirKernel("QPRelu", "qtune", reference=_reference, fast=_fast),
        ),
        weight_role="weight",
        weight_axis=lambda attrs: 0,
        march=limits.NOT_BERNOULLI,
        flops=output_elements,
        sample=_sample,
        doc="x where x > 0, else weight[channel] * x",
    )
)
