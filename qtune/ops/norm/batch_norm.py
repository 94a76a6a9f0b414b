"""batch_norm: folded into the GEMM before it, else per channel on its own (numerics.md section 3).

Alone: ``M[c] = s_x * gamma'[c] / s_y`` without weight quantization, and the bias
``floor(b'[c] / s_y * 2**n + 0.5)`` added before the one rounding, with ``gamma'`` and ``b'`` of
:func:`qtune.ops.norm.fold.affine_form`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith.requantize import rescale
from qtune.arith.rounding import round_half_up
from qtune.arith_fast.held import offset
from qtune.arith_fast.requantize import Requantizer
from qtune.dtype import QuantDType
from qtune.errors import ConvertError, ExportError
from qtune.ops.gemm.pending import check_requantize, quantized_input
from qtune.ops.kernel import (
    Builder,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
    Pending,
    QValue,
    Value,
)
from qtune.ops.norm.fold import affine_form
from qtune.ops.norm.synchronized import synchronized_batch_norm
from qtune.ops.quant.codes import code_bounds, input_dtype, onnx_type, output_dtype, tighten
from qtune.ops.quant.precision import SUM_SHIFT, multipliers
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    FunctionTarget,
    FuseRole,
    MarchRule,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)
from qtune.quantizers.processes import in_several_processes

Array = np.ndarray[Any, Any]

ROLES = ("input", "running_mean", "running_var", "weight", "bias", "num_batches_tracked")
_PARAMS = {role: role for role in ROLES[1:]}

_SYNCHRONIZED = "synchronized"
"""Attribute of what was a SyncBatchNorm."""

_VANISHING_SHIFT = 47
"""From this shift on a product of code and multiplier is 0 (numerics.md section 2.3)."""

_BIAS_LIMIT = 2.0**61
"""Beyond any bias that does not saturate the output; keeps the sum inside int64."""


def _bind_module(module: nn.Module, input: Any) -> Bound:
    m: Any = module
    attrs = {"training": None, "momentum": m.momentum, "eps": m.eps}
    if isinstance(m, nn.SyncBatchNorm):
        if m.process_group is not None:
            raise NotImplementedError("a SyncBatchNorm with a process_group of its own")
        attrs[_SYNCHRONIZED] = True
    return Bound((input, None, None, None, None, None), attrs)


def _bind(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Bound:
    attrs = {"training": training, "momentum": momentum, "eps": eps}
    return Bound((input, running_mean, running_var, weight, bias, None), attrs)


def _bind_torch(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: Any,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Bound:
    return _bind(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _float_kernel(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    num_batches_tracked: torch.Tensor | None = None,
    *,
    training: bool | None = None,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    synchronized: bool = False,
) -> torch.Tensor:
    """torch's batch norm as the module does it, updating the running statistics in training.

    ``training`` None means the mode of the module, which the caller fills in; else False.
    ``momentum`` None is the cumulative average over ``num_batches_tracked``. ``synchronized``:
    training takes the batches of all processes as one.
    """
    use_batch = bool(training) or running_mean is None
    factor = 0.0 if momentum is None else momentum
    if training and num_batches_tracked is not None:
        num_batches_tracked.add_(1)
        if momentum is None:
            factor = 1.0 / float(num_batches_tracked)
    if synchronized and training and in_several_processes():
        statistics = running_mean, running_var
        return synchronized_batch_norm(input, *statistics, weight, bias, factor, eps)
    return F.batch_norm(input, running_mean, running_var, weight, bias, use_batch, factor, eps)


def _lower(b: Builder, call: LowerCall) -> Value:
    x, mean, variance, weight, bias, _ = call.operands
    if mean is None or variance is None or call.attrs.get("training"):
        raise ExportError(
            f"{call.name}: this batch norm uses the statistics of each batch, which have no HBIR "
            "form. Give it running statistics (track_running_stats=True) and eval mode"
        )
    channels = (call.input_shapes[0] or (0, 0))[1]
    if weight is None:
        weight = b.constant(np.ones(channels, dtype=np.float32), "weight")
    if bias is None:
        bias = b.constant(np.zeros(channels, dtype=np.float32), "bias")
    operands = [x, weight, bias, mean, variance]
    return b.add("BatchNormalization", operands, {"epsilon": call.attrs["eps"]})


def _run_float(
    attrs: Mapping[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
) -> torch.Tensor:
    return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, attrs.get("epsilon", 1e-5))


@dataclass(frozen=True, slots=True)
class BatchNormPending(Pending):
    """``x * factor[c] + shift[c]`` whose output scale is still to come; ``rank`` is that of x."""

    name: str
    x: QValue
    factor: Array
    shift: Array
    rank: int
    low: float | None = None
    high: float | None = None

    def emit(self, ctx: ConvertContext, scale: float, dtype: QuantDType) -> QValue:
        """Emit QBatchNorm."""
        check_requantize(ctx, self.name, dtype)
        m, n, bias = fixed_point(ctx, self.factor, self.shift, self.x.scale, scale)
        shape = (-1, *[1] * (self.rank - 2))
        constants = [
            ctx.constant(values.reshape(shape), suffix)
            for values, suffix in ((m, "m"), (n, "n"), (bias, "bias"))
        ]
        lo, hi = code_bounds(self.low, self.high, scale, dtype)
        attrs = {"lo": lo, "hi": hi, "to": onnx_type(dtype)}
        value = ctx.add("QBatchNorm", [self.x.value, *constants], attrs, domain="qtune")
        return QValue(value, dtype, scale, lo, hi)

    def clamp(self, ctx: ConvertContext, low: float | None, high: float | None) -> Pending:
        """Clamp the output codes."""
        new_low, new_high = tighten(self.low, self.high, low, high)
        return replace(self, low=new_low, high=new_high)


def fixed_point(
    ctx: ConvertContext, factor: Array, shift: Array, s_x: float, s_y: float
) -> tuple[Array, Array, Array]:
    """Return int64 ``m``, ``n`` and bias per channel: ``y = (x * m + bias + 2**(n-1)) >> n``."""
    step_x, step_y = float(np.float32(s_x)), float(np.float32(s_y))
    m, n = multipliers(ctx, step_x * factor / step_y, largest_shift=SUM_SHIFT)
    vanishes = n >= _VANISHING_SHIFT
    m, n = np.where(vanishes, 0, m), np.where(vanishes, 0, n)
    bias = round_half_up(np.ldexp(shift / step_y, n))
    return m, n, np.clip(bias, -_BIAS_LIMIT, _BIAS_LIMIT).astype(np.int64)


def _convert(ctx: ConvertContext, node: FloatNode) -> Operand:
    weight, bias, mean, variance = (_constant(node, index) for index in range(1, 5))
    form = affine_form(mean, variance, weight, bias, node.attrs.get("epsilon", 1e-5))
    return BatchNormPending(
        name=node.name,
        x=quantized_input(node, 0),
        factor=form.factor.numpy(),
        shift=form.shift.numpy(),
        rank=len(node.output_shape),
    )


def _constant(node: FloatNode, index: int) -> torch.Tensor:
    operand = node.operands[index]
    if isinstance(operand, FloatConst):
        return torch.from_numpy(np.array(operand.data))
    raise ConvertError(
        f"{node.name}: operand {index} of BatchNormalization must be a constant, got "
        f"{type(operand).__name__}"
    )


def _reference(attrs: Mapping[str, Any], x: Array, m: Array, n: Array, bias: Array) -> Array:
    return np.clip(rescale(x * m + bias, 1, n), attrs["lo"], attrs["hi"])


def _fast(node: KernelNode) -> FastKernel:
    source = input_dtype(node, 0)
    m, n, bias = (node.constants[index].astype(np.int64) for index in (1, 2, 3))
    factor, zero = torch.from_numpy(m.astype(np.float64)), offset(source)
    finish = Requantizer(
        np.ones(n.size, dtype=np.int64),
        n.reshape(-1),
        bias.reshape(-1),
        lo=node.attrs["lo"],
        hi=node.attrs["hi"],
        out=output_dtype(node),
        bound=-source.qmin * int(np.abs(m).max(initial=1)),
    )
    return lambda x: finish(x.double().sub_(zero).mul_(factor))


def _sample(rng: Any) -> Sample:
    channels = int(rng.integers(1, 6))
    extra = ((), (3,), (4, 3))[int(rng.integers(3))]
    vector = (channels,)
    shapes = ((2, channels, *extra), vector, vector, vector, vector, None)
    return Sample(shapes, {"training": None, "momentum": 0.1, "eps": 1e-5})


register(
    OpSpec(
        name="batch_norm",
        family="norm",
        rule=Rule.OWN_SCALE,
        roles=ROLES,
        targets=(
            *(
                ModuleTarget(cls, _bind_module, _PARAMS)
                for cls in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
            ),
            FunctionTarget(F.batch_norm, _bind),
            FunctionTarget(torch.batch_norm, _bind_torch),
        ),
        float_kernel=_float_kernel,
        lower=_lower,
        kernels=(
            HbirKernel("BatchNormalization", run_float=_run_float, convert=_convert),
            HbirKernel("QBatchNorm", "qtune", reference=_reference, fast=_fast),
        ),
        fuse=FuseRole.BN,
        march=(
            MarchRule(("bernoulli",), ("qint8",), ("qint8",)),
            MarchRule(("bayes", "nash"), ("qint8", "qint16"), ("qint8", "qint16")),
        ),
        flops=lambda attrs, input_shapes, output_shape: int(np.prod(output_shape, dtype=np.int64)),
        sample=_sample,
        doc="batch normalization",
    )
)
