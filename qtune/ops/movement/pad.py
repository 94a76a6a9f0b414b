"""pad: a border of a constant, of mirrored or repeated values; keeps the input's scale.

A constant other than 0 is rounded to the input's grid in the integer model only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith.quantize import in_range, quantize
from qtune.arith_fast.held import ZERO, channels_last
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FastKernel,
    FloatConst,
    FloatNode,
    HbirKernel,
    KernelNode,
    LowerCall,
    Operand,
    QConst,
    QValue,
    Value,
)
from qtune.ops.movement.moving import carry, int64, no_flops, operand_value
from qtune.ops.quant.codes import stored
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    FunctionTarget,
    MarchRule,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)

ONNX_MODES = {
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
TORCH_MODES = {onnx: torch_name for torch_name, onnx in ONNX_MODES.items()}


def _bind(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Bound:
    if mode not in ONNX_MODES:
        raise NotImplementedError(f"pad mode {mode!r}; known: {', '.join(ONNX_MODES)}")
    if not isinstance(pad, Sequence):
        raise NotImplementedError("pad with an amount that is the result of another operator")
    return Bound((input,), {"pad": tuple(pad), "mode": mode, "value": value})


def _bind_constant(input: Any, pad: Any, value: Any = 0) -> Bound:
    return _bind(input, pad, "constant", value)


def _module(*classes: type, mode: str) -> tuple[ModuleTarget, ...]:
    def bind(module: Any, input: Any) -> Bound:
        return _bind(input, module.padding, mode, getattr(module, "value", None))

    return tuple(ModuleTarget(cls, bind) for cls in classes)


def float_kernel(x: torch.Tensor, *, pad: Any, mode: str, value: float | None) -> torch.Tensor:
    """``x`` with a border; ``pad`` as in torch: (left, right, top, bottom, ...)."""
    return F.pad(x, pad, mode, value)


def _fills(attrs: Mapping[str, Any]) -> float | None:
    return float(attrs["value"] or 0) if attrs["mode"] == "constant" else None


def _lower(b: Builder, call: LowerCall) -> Any:
    rank = len(call.input_shapes[0] or ())
    pad = [int(amount) for amount in call.attrs["pad"]]
    begins, ends = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        begins[rank - 1 - i], ends[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    inputs = [call.operands[0], b.constant(int64(begins + ends), "pads")]
    if call.attrs["mode"] == "constant":
        inputs.append(b.constant(_border(call), "value"))
    return b.add("Pad", inputs, {"mode": ONNX_MODES[call.attrs["mode"]]})


def _border(call: LowerCall) -> np.ndarray[Any, Any]:
    dtype = (call.input_dtypes or ("float32",))[0] or "float32"
    return np.array(call.attrs["value"] or 0, dtype=np.dtype(dtype))


def torch_pad(x: torch.Tensor, pads: Sequence[int], mode: str, value: Any) -> torch.Tensor:
    """ONNX's Pad in torch; ``pads``: all begins, then all ends."""
    rank = len(pads) // 2
    if mode != "constant" and not _is_torchs(x.shape, pads):
        return _pad_each(x, pads, mode)
    amounts = [int(a) for i in range(rank)[::-1] for a in (pads[i], pads[rank + i])]
    # torch mirrors and repeats all but the first two dimensions, or one more.
    least = 2 if mode == "constant" else 2 * max(rank - 2, 1)
    while len(amounts) > least and not any(amounts[-2:]):
        amounts = amounts[:-2]
    if mode != "constant" and x.dtype == torch.bool:
        return torch_pad(x.to(torch.uint8), pads, mode, value).bool()
    return F.pad(x, amounts, TORCH_MODES[mode], value if mode == "constant" else None)


def _is_torchs(shape: Sequence[int], pads: Sequence[int]) -> bool:
    """Whether torch mirrors and repeats so: the last dimensions behind at least one, less than they
    are long."""
    rank = len(shape)
    padded = [i for i in range(rank) if pads[i] or pads[rank + i]]
    small = all(max(pads[i], pads[rank + i]) < shape[i] for i in padded)
    return small and 2 <= rank <= 5 and min(padded, default=rank) >= max(rank - 3, 1)


def _pad_each(x: torch.Tensor, pads: Sequence[int], mode: str) -> torch.Tensor:
    """One dimension after the other, by the places that its elements come from."""
    rank = x.dim()
    for axis, size in enumerate(x.shape):
        ends = pads[axis], pads[rank + axis]
        if any(ends):
            order = _reference({"mode": mode}, np.arange(size), ends)
            x = x.index_select(axis, torch.from_numpy(order))
    return x


def _run_float(
    attrs: Attrs, x: torch.Tensor, pads: torch.Tensor, value: Any = None
) -> torch.Tensor:
    number = None if value is None else value.item()
    return torch_pad(x, pads.tolist(), attrs.get("mode", "constant"), number)


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    x, pads = node.operands[0], node.operands[1]
    border = node.operands[2] if len(node.operands) > 2 else None
    mode = node.attrs.get("mode", "constant")
    if isinstance(x, QConst):
        raise ConvertError(f"{node.name}: pad of a quantized constant; pad it before the model")
    attrs = {"mode": mode}
    if not isinstance(x, QValue):
        given = [operand_value(ctx, node, part) for part in (pads, border) if part is not None]
        return carry(ctx, node, lambda v: ctx.add("Pad", [v, *given], attrs))
    code = _code(x, border)
    if mode == "constant":
        _report_saturated(ctx, node, x, border, int(code))
    inputs: list[Value | None] = [x.value, operand_value(ctx, node, pads)]
    inputs.append(ctx.constant(stored(code, x.dtype), "value"))
    if x.dtype.bits == 8:
        value = ctx.add("Pad", inputs if mode == "constant" else inputs[:2], attrs)
    else:
        value = ctx.add("Pad16", inputs, attrs, domain="qtune")
    return _with_border(replace(x, value=value), int(code), mode)


def _code(x: QValue, border: Operand | None) -> np.ndarray[Any, Any]:
    """The code of the border's value; -inf saturates to qmin."""
    value = border.data if isinstance(border, FloatConst) else np.zeros((), dtype=np.float32)
    return quantize(value.reshape(()), x.scale, x.dtype)


def _report_saturated(
    ctx: ConvertContext, node: FloatNode, x: QValue, border: Operand | None, code: int
) -> None:
    """The prepared model has the very number there; beyond the grid the integers can't follow."""
    value = float(border.data.reshape(())) if isinstance(border, FloatConst) else 0.0
    if np.isinf(value) or bool(in_range(np.float32(value), x.scale, x.dtype)):
        return
    ctx.report(
        "pad_saturated",
        f"{node.name}: the pad value {value:g} lies outside the range of its input's grid and "
        f"becomes {code * x.scale:g}. Pad with a value of that range, or before the operator that "
        "makes the input",
        value=value,
    )


def _with_border(x: QValue, code: int, mode: str) -> QValue:
    """The known range of the codes, widened by the border."""
    if mode != "constant":
        return x
    low = None if x.code_min is None else min(x.code_min, code)
    high = None if x.code_max is None else max(x.code_max, code)
    return replace(x, code_min=low, code_max=high)


def _reference(
    attrs: Attrs, x: np.ndarray[Any, Any], pads: Any, value: Any = None
) -> np.ndarray[Any, Any]:
    rank = x.ndim
    amounts = [(int(pads[i]), int(pads[rank + i])) for i in range(rank)]
    crop = tuple(
        slice(max(-begin, 0), size - max(-end, 0))
        for (begin, end), size in zip(amounts, x.shape, strict=True)
    )
    grow = [(max(begin, 0), max(end, 0)) for begin, end in amounts]
    mode = attrs.get("mode", "constant")
    if mode != "constant":
        return np.asarray(np.pad(x[crop], grow, mode=mode))
    number = 0 if value is None else np.asarray(value).item()
    return np.pad(x[crop], grow, constant_values=number)


def _fast(node: KernelNode) -> FastKernel:
    pads, mode = node.constants[1].tolist(), node.attrs.get("mode", "constant")
    code = node.constants[2].item() if 2 in node.constants else 0
    value = code + ZERO if node.input_dtypes[0] == "int8" else code
    return lambda x: channels_last(torch_pad(x, pads, mode, value))


def _check(attrs: Attrs, inputs: Sequence[Any], output: Any) -> str | None:
    worst = max((abs(int(amount)) for amount in attrs.get("pad", ())), default=0)
    return f"a border of {worst}; at most 4096" if worst > 4096 else None


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(3, 7, 4))
    mode = list(ONNX_MODES)[int(rng.integers(4))]
    pad = tuple(int(v) for v in rng.integers(0 if mode != "constant" else -1, 3, 4))
    value = 0.0 if mode == "constant" and rng.integers(2) else None
    return Sample((shape,), {"pad": pad, "mode": mode, "value": value})


register(
    OpSpec(
        name="pad",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("input",),
        targets=(
            *_module(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, mode="constant"),
            *_module(nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, mode="constant"),
            *_module(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d, mode="reflect"),
            *_module(
                nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d, mode="replicate"
            ),
            *_module(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d, mode="circular"),
            FunctionTarget(F.pad, _bind),
            FunctionTarget(torch.constant_pad_nd, _bind_constant),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        kernels=(
            HbirKernel(
                "Pad", run_float=_run_float, convert=_convert, reference=_reference, fast=_fast
            ),
            HbirKernel("Pad16", "qtune", reference=_reference, fast=_fast),
        ),
        march=(MarchRule(("bayes",)), MarchRule(("nash",), check=_check)),
        fills=_fills,
        flops=no_flops,
        sample=_sample,
        doc="a border of a constant, of mirrored or of repeated values",
    )
)
