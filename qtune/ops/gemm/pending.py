"""A GEMM whose output scale is still to come: bias, addend, clamp, requantize (numerics.md 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qtune.arith.bias import INT32_BIAS_LIMIT, INT48_BIAS_LIMIT, BiasPlan, quantize_bias
from qtune.arith.quantize import quantize
from qtune.dtype import QuantDType
from qtune.errors import ConvertError, MarchError
from qtune.march import as_march
from qtune.ops.gemm.channels import channel_unview
from qtune.ops.gemm.variants import Variant, variant
from qtune.ops.kernel import (
    ConvertContext,
    FloatConst,
    FloatNode,
    FloatValue,
    Operand,
    Pending,
    QConst,
    QValue,
    Value,
)
from qtune.ops.operand_words import GIVE_SCALE, GIVE_WEIGHT_SCALE, described
from qtune.ops.quant.codes import code_bounds, march_dtype, onnx_type, stored, tighten
from qtune.ops.quant.precision import multipliers

Array = np.ndarray[Any, Any]
DOMAIN = "qtune"


@dataclass(frozen=True, slots=True)
class GemmPending(Pending):
    """Convolution, transposed convolution or linear with a constant weight.

    ``base``: the integer operator without suffix. ``weight``: in channel view, output channels on
    ``channel_axis``, with one scale each or one for all. ``groups``: those of
    :func:`channel_unview`. ``trailing``: dimensions of the output behind the channel axis, onto
    which per-channel constants broadcast.
    """

    name: str
    base: str
    attrs: Mapping[str, Any]
    x: QValue
    weight: QConst
    bias: Array | None
    groups: int = 1
    trailing: int = 0
    addend: QValue | None = None
    low: float | None = None
    high: float | None = None
    channel_axis: int = 0

    def emit(self, ctx: ConvertContext, scale: float, dtype: QuantDType) -> QValue:
        """Emit ``<base>`` or ``<base>Add``: exact sum, bias, addend, one requantize."""
        kind = self._variant(ctx)
        check_requantize(ctx, self.name, dtype)
        plan = self._plan(ctx, kind)
        m, n = multipliers(ctx, self._acc_scale(plan) / float(np.float32(scale)))
        factors = [self._channels(ctx, m, "m"), self._channels(ctx, n, "n")]
        lo, hi = code_bounds(self.low, self.high, scale, dtype)
        attrs = {"lo": lo, "hi": hi, "to": onnx_type(dtype)}
        if requantizes_apart(ctx, kind):
            acc = self._accumulator(ctx, kind, plan)
            value = ctx.add("Requantize", [acc, *factors], attrs, domain=DOMAIN)
            return QValue(value, dtype, scale, lo, hi)
        addend = self._addend_inputs(ctx, plan)
        inputs = [*self._sum_inputs(ctx, kind, plan), *factors, *addend]
        name = f"{self.base}{kind.suffix}{'Add' if addend else ''}"
        value = ctx.add(name, inputs, {**self.attrs, **attrs}, domain=DOMAIN)
        return QValue(value, dtype, scale, lo, hi)

    def accumulate(self, ctx: ConvertContext, addend: QValue) -> Pending | None:
        """Take ``addend`` into the accumulator; only one, and before any clamp."""
        if self.addend is not None or self.low is not None or self.high is not None:
            return None
        return replace(self, addend=addend)

    def clamp(self, ctx: ConvertContext, low: float | None, high: float | None) -> Pending:
        """Clamp the output codes."""
        new_low, new_high = tighten(self.low, self.high, low, high)
        return replace(self, low=new_low, high=new_high)

    def dequantize(self, ctx: ConvertContext) -> FloatValue:
        """Emit the int32 accumulator times ``s_x * s_w[c]``, float32; a clamp follows in float."""
        kind = self._variant(ctx)
        check_high_precision(self.name, kind)
        plan = self._plan(ctx, kind)
        acc = self._accumulator(ctx, kind, plan)
        s_x = ctx.constant(np.array(self.x.scale, dtype=np.float32), "s_x")
        s_w = self._channels(ctx, plan.s_w, "s_w")
        return clamp_float(
            ctx, ctx.add("DequantizeAcc", [acc, s_x, s_w], {}, domain=DOMAIN), self.low, self.high
        )

    def _accumulator(self, ctx: ConvertContext, kind: Variant, plan: BiasPlan) -> Value:
        """Emit the GEMM with its int32 accumulator as the result."""
        addend = self._addend_inputs(ctx, plan)
        name = f"{self.base}{kind.suffix}{'AddAcc' if addend else 'Acc'}"
        inputs = [*self._sum_inputs(ctx, kind, plan), *addend]
        return ctx.add(name, inputs, self.attrs, domain=DOMAIN)

    def _acc_scale(self, plan: BiasPlan) -> Array:
        return float(np.float32(self.x.scale)) * plan.s_w.astype(np.float64)

    def _variant(self, ctx: ConvertContext) -> Variant:
        check_operands(ctx, self.name, self.x, self.weight)
        return variant(self.x.dtype, self.weight.dtype)

    def _plan(self, ctx: ConvertContext, kind: Variant) -> BiasPlan:
        channels = self.weight.codes.shape[self.channel_axis]
        bias = np.zeros(channels) if self.bias is None else self.bias
        limit = INT32_BIAS_LIMIT if kind.accumulator_bits == 32 else INT48_BIAS_LIMIT
        addend: tuple[float | None, int] = (None, 0)
        if self.addend is not None:
            addend = (self.addend.scale, -self.addend.dtype.qmin)
        plan = quantize_bias(bias, self.x.scale, self.weight.scale, limit, *addend)
        if plan.widened.any():
            self._report_widened(ctx, plan)
        return plan

    def _report_widened(self, ctx: ConvertContext, plan: BiasPlan) -> None:
        channels = np.flatnonzero(plan.widened).tolist()
        before = np.broadcast_to(self.weight.scale, plan.s_w.shape)[plan.widened]
        ctx.report(
            "bias_widened",
            f"{self.name}: the bias of {len(channels)} output channel(s) does not fit the "
            "accumulator at the calibrated scales; their weight scales were widened until it "
            "fits (numerics.md section 2.2). The weights there are much smaller than the bias",
            channels=channels,
            scale_before=before.tolist(),
            scale_after=plan.s_w[plan.widened].tolist(),
        )

    def _sum_inputs(self, ctx: ConvertContext, kind: Variant, plan: BiasPlan) -> list[Value]:
        codes = self.weight.codes
        if plan.widened.any():
            weight = self.weight
            codes = quantize(weight.data, plan.s_w, weight.dtype, self.channel_axis)
        weight_codes = stored(channel_unview(codes, self.groups), self.weight.dtype)
        bias_type = np.int32 if kind.accumulator_bits == 32 else np.int64
        return [
            self.x.value,
            ctx.constant(weight_codes, "weight"),
            self._channels(ctx, plan.bias_q.astype(bias_type), "bias"),
        ]

    def _addend_inputs(self, ctx: ConvertContext, plan: BiasPlan) -> list[Value]:
        if self.addend is None:
            return []
        m, n = multipliers(ctx, float(np.float32(self.addend.scale)) / self._acc_scale(plan))
        return [
            self.addend.value,
            self._channels(ctx, m, "m_addend"),
            self._channels(ctx, n, "n_addend"),
        ]

    def _channels(self, ctx: ConvertContext, values: Array, suffix: str) -> Value:
        return ctx.constant(values.reshape(-1, *[1] * self.trailing), suffix)


def clamp_float(
    ctx: ConvertContext, value: Value, low: float | None, high: float | None
) -> FloatValue:
    """Clamp a high-precision result; a relu behind it runs on the CPU (toolchain_facts 7.3)."""
    if low is None and high is None:
        return FloatValue(value)
    if low == 0 and high is None:
        return FloatValue(ctx.add("Relu", [value]))
    bounds = [
        None if bound is None else ctx.constant(np.array(bound, dtype=np.float32), "bound")
        for bound in (low, high)
    ]
    return FloatValue(ctx.add("Clip", [value, *bounds]))


def check_operands(ctx: ConvertContext, name: str, first: QValue, second: QValue | QConst) -> None:
    """Raise ``MarchError`` where the march has no GEMM for these operand dtypes.

    8-bit codes of a file with a zero point count as int8: they are carried less it, in int16.
    """
    limits = as_march(ctx.march).limits
    x, w = (
        march_dtype(codes, ctx.is_imported) if isinstance(codes, QValue) else codes.dtype
        for codes in (first, second)
    )
    wide = [dtype for dtype in (x, w) if dtype.bits > 8]
    if not wide:
        return
    if not limits.int16_activations:
        reason = "it has no int16 GEMM"
    elif w.bits > 8 and limits.series != "nash":
        reason = "its second GEMM operand must be qint8"
    elif len(wide) == 2 and not limits.dual_int16:
        reason = "only one GEMM operand may be qint16"
    else:
        return
    raise MarchError(
        f"{name}: {x} x {w} is not possible on {ctx.march}: {reason}. Set that operand to qint8"
    )


def check_requantize(ctx: ConvertContext, name: str, dtype: QuantDType) -> None:
    """Raise where an output dtype or the wanted requantize can't be made."""
    is_wide = dtype.bits == 16 and not ctx.is_imported  # imported: 8 bits less a zero point
    if is_wide and not as_march(ctx.march).limits.int16_activations:
        raise MarchError(f"{name}: {ctx.march} has no qint16 output; set its output to qint8")


def requantizes_apart(ctx: ConvertContext, kind: Variant) -> bool:
    """Whether the accumulator is a result of its own; one of 48 bits can't leave the GEMM."""
    return not ctx.fuses_requantize and kind.accumulator_bits == 32


def check_high_precision(name: str, kind: Variant) -> None:
    """Raise ``MarchError`` for a high-precision output of int16 x int16."""
    if kind.accumulator_bits != 32:
        raise MarchError(
            f"{name}: int16 x int16 has no high-precision (qint32) output. Give the operator an "
            "output dtype, or set one operand to qint8"
        )


def constant_weight(node: FloatNode, index: int) -> QConst:
    """The weight operand of a GEMM, or a clear error."""
    weight = node.operands[index]
    if isinstance(weight, QConst):
        return weight
    raise ConvertError(
        f"{node.name}: the weight of {node.op_type} must be a quantized constant and is "
        f"{described(weight)}. {GIVE_WEIGHT_SCALE}"
    )


def quantized_input(node: FloatNode, index: int) -> QValue:
    """The activation operand of a GEMM, or a clear error."""
    x = node.operands[index]
    if isinstance(x, QValue):
        return x
    raise ConvertError(
        f"{node.name}: the input of {node.op_type} must be quantized codes and is {described(x)}. "
        f"{GIVE_SCALE}, or keep this one in float"
    )


def optional_bias(node: FloatNode, index: int) -> Array | None:
    """The bias of a GEMM in float32, ``None`` if absent, or a clear error."""
    operand: Operand | None = node.operands[index] if len(node.operands) > index else None
    if operand is None:
        return None
    if isinstance(operand, FloatConst):
        return operand.data
    raise ConvertError(
        f"{node.name}: the bias of {node.op_type} must be a constant and is "
        f"{described(operand)}. Add it in an operator of its own"
    )
