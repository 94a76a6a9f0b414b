"""What an operator of a prepared model knows of its operands' grids from consistency level 1 on.

A GEMM then adds the bias that the integer GEMM adds, an int16 table operator looks up in its table,
and an operator with an exact form follows it (numerics.md section 4). Gradients are those of the
float function throughout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from qtune.arith_fast.fake_quantize_grad import straight_through
from qtune.quantizers.fake_quantize import FakeQuantize

if TYPE_CHECKING:
    from qtune.nn.qat.op import QATOp

BIAS = "bias"
"""Role of a GEMM's bias."""


def input_grid(op: QATOp) -> FakeQuantize | None:
    """The fake-quantize that the first operand of ``op`` is on the grid of now.

    ``None``: it is float now, or ``op`` is called on inputs of several grids.
    """
    first = op.grid_sources[0] if op.grid_sources else None
    if first is None or not first.is_quantizing:
        return None
    same = all(
        other is not None and other.dtype == first.dtype and torch.equal(other.scale, first.scale)
        for other in op.grid_sources[1:]
    )
    return first if same else None


def bias_on_grid(op: QATOp, bias: Any, weight_scale: torch.Tensor | None = None) -> Any:
    """``floor(bias / (s_x * s_w[c]) + 0.5) * s_x * s_w[c]`` in float64, in the dtype of ``bias``.

    ``weight_scale``: ``s_w`` where it is not that of the weight's fake-quantize (a folded weight).
    Gradients pass unchanged. ``bias`` as it is while something does not quantize, and where ``op``
    is called on inputs of several grids.
    """
    weight, source = op.weight_fake_quant, input_grid(op)
    if not isinstance(bias, torch.Tensor) or source is None:
        return bias
    if weight is None or not weight.is_quantizing:
        return bias
    scale = weight.scale if weight_scale is None else weight_scale
    step = source.scale.double() * scale.double()
    exact = torch.floor(bias.detach().double() / step + 0.5) * step
    return straight_through(bias, exact.to(bias.dtype))


def looked_up(op: QATOp, x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``result`` of an int16 table operator as the table gives it for ``x``.

    While training moves the scales, no table is made and ``result`` stays what it is.
    """
    from qtune.nn.table import unrolled_table

    source, target = input_grid(op), op.activation_post_process
    if source is None or source.dtype.bits <= 8 or not isinstance(target, FakeQuantize):
        return result
    if op.training and (source.observes or target.observes):
        return result
    key = torch.cat([source.scale, target.scale, *source.observed_range()]).tolist()
    if op.level_table is None or op.level_table[0] != key:
        op.level_table = key, unrolled_table(op, source)
    codes = torch.floor(x.detach().float() / source.scale + 0.5)
    index = codes.clamp_(source.quant_min, source.quant_max).sub_(source.quant_min).long()
    entries = op.level_table[1].to(x.device)
    values = entries[index].mul_(target.scale).to(result.dtype)
    return straight_through(result, values)


def exact_scale(op: QATOp) -> float | None:
    """The input's scale where ``op`` is to follow its exact form now (``OpSpec.exact``)."""
    form, source = op.spec.exact, input_grid(op)
    if form is None or source is None or source.dtype.bits > 8:
        return None
    return float(source.scale.detach()) if (op.consistency_level or 0) >= form.level else None


def on_exact_form(
    op: QATOp, values: Sequence[Any], attrs: Mapping[str, Any], result: torch.Tensor
) -> torch.Tensor:
    """``result`` as the integer rule gives it, where the level asks for that."""
    scale, form = exact_scale(op), op.spec.exact
    if scale is None or form is None:
        return result
    with torch.no_grad():
        exact = form.kernel(scale, *values, **attrs)
    return straight_through(result, exact)
