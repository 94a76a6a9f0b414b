"""Fast kernels of the integer GEMMs: HBIR nodes bound to ``qtune.arith_fast``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.capability import guard
from qtune.arith_fast.gemm import (
    conv2d_kernel,
    conv_transpose2d_kernel,
    linear_kernel,
)
from qtune.arith_fast.held import channels_last, offset
from qtune.arith_fast.requantize import INT32_BOUND, INT48_BOUND, Requantizer
from qtune.dtype import QuantDType, qint8, qint32
from qtune.ops.gemm.saturation import note_saturation
from qtune.ops.gemm.volumes import counting, fast_conv3d, fast_conv_transpose3d
from qtune.ops.kernel import FastKernel, KernelNode
from qtune.ops.quant.codes import held_quant_dtype, input_dtype, output_dtype

FLOAT32_INNER = 1 << 10
"""int8 x int8 sums of fewer products than this stay below 2**24: exact in float32."""


def fast_conv(node: KernelNode, bits: int, form: str) -> FastKernel:
    """The fast kernel of QConv: maps, sequences as maps of height 1, volumes as stacks of maps."""
    attrs, weight = node.attrs, _weight(node)
    rank = weight.ndim - 2
    if rank == 3:
        return fast_conv3d(node, weight, _finish(node, form))
    pads = tuple(attrs["pads"])
    strides, dilations = tuple(attrs["strides"]), tuple(attrs["dilations"])
    if rank == 1:
        weight = weight[:, :, None, :]
        strides, dilations, pads = (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1])
    kernel = conv2d_kernel(
        weight,
        **_finish(node, form),
        stride=strides,
        padding=pads,
        dilation=dilations,
        groups=attrs["group"],
    )
    return counting(kernel) if rank == 2 else _as_maps(counting(kernel))


def fast_conv_transpose(node: KernelNode, bits: int, form: str) -> FastKernel:
    """The fast kernel of QConvTranspose: as :func:`fast_conv`."""
    attrs, weight = node.attrs, _weight(node)
    rank = weight.ndim - 2
    if rank == 3:
        return fast_conv_transpose3d(node, weight, _finish(node, form))
    geometry = {key: tuple(attrs[key]) for key in ("strides", "output_padding", "dilations")}
    pads = tuple(attrs["pads"])
    if rank == 1:
        weight, pads = weight[:, :, None, :], (0, pads[0], 0, pads[1])
        neutral = {"strides": 1, "output_padding": 0, "dilations": 1}
        geometry = {key: (neutral[key], *value) for key, value in geometry.items()}
    kernel = conv_transpose2d_kernel(
        weight,
        **_finish(node, form),
        stride=geometry["strides"],
        padding=pads,
        output_padding=geometry["output_padding"],
        dilation=geometry["dilations"],
        groups=attrs["group"],
    )
    return counting(kernel) if rank == 2 else _as_maps(counting(kernel))


def fast_linear(node: KernelNode, bits: int, form: str) -> FastKernel:
    """The fast kernel of QLinear."""
    return counting(linear_kernel(_weight(node), **_finish(node, form)))


def _weight(node: KernelNode) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(node.constants[1], dtype=np.int64)


def _finish(node: KernelNode, form: str) -> dict[str, Any]:
    """Bias, requantize and addend of a node, as the prepared kernels take them."""
    constants = node.constants
    options: dict[str, Any] = {
        "bias_q": _channels(constants[2]),
        "m": None,
        "n": None,
        "in_dtype": input_dtype(node, 0),
        "w_dtype": held_quant_dtype(str(constants[1].dtype)),
        "out_dtype": qint32,
        "code_range": node.code_ranges.get(0),
    }
    addend = 3
    if "Acc" not in form:
        options |= {
            "m": _channels(constants[3]),
            "n": _channels(constants[4]),
            "out_dtype": output_dtype(node),
            "lo": node.attrs["lo"],
            "hi": node.attrs["hi"],
        }
        addend = 5
    if "Add" in form:
        factor = (_channels(constants[addend + 1]), _channels(constants[addend + 2]))
        options["addend"] = (*factor, input_dtype(node, addend))
    return options


def _channels(constant: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return constant.reshape(-1).astype(np.int64)


def _as_maps(kernel: FastKernel) -> FastKernel:
    def run(*held: torch.Tensor) -> torch.Tensor:
        maps = (channels_last(x.unsqueeze(2)) for x in held)
        result: torch.Tensor = kernel(*maps).squeeze(2).contiguous()
        return result

    return run


def fast_matmul(node: KernelNode, bits: int, form: str) -> FastKernel:
    """The fast kernel of QMatMul: an exact floating point product, then the exact requantize."""
    dtypes = (input_dtype(node, 0), input_dtype(node, 1))
    load = [_loader(node, index, dtype) for index, dtype in enumerate(dtypes)]
    narrow = all(dtype.bits <= qint8.bits for dtype in dtypes)
    finish = _requantizer(node, bits, form)

    def run(*held: torch.Tensor) -> torch.Tensor:
        waiting = iter(held)
        a, b = (take(waiting) for take in load)
        wide = torch.float32 if narrow and a.shape[-1] < FLOAT32_INNER else torch.float64
        with guard():
            acc = torch.matmul(a.to(wide), b.to(wide))
        return finish(acc if bits == 48 else _saturate(acc))

    return run


def _loader(node: KernelNode, index: int, dtype: QuantDType) -> Callable[[Any], torch.Tensor]:
    """Take an operand from the held inputs, or from the constants; plain codes come out."""
    constant = node.constants.get(index)
    if constant is not None:
        codes = torch.from_numpy(constant.astype(np.int32))
        return lambda waiting: codes
    zero = offset(dtype)
    return lambda waiting: next(waiting).to(torch.int32) - zero


def _requantizer(node: KernelNode, bits: int, form: str) -> Callable[[torch.Tensor], torch.Tensor]:
    if form == "Acc":
        return lambda acc: channels_last(acc.to(torch.int32))
    return Requantizer(
        int(node.constants[2]),
        int(node.constants[3]),
        lo=node.attrs["lo"],
        hi=node.attrs["hi"],
        out=output_dtype(node),
        bound=INT32_BOUND if bits == 32 else INT48_BOUND,
    )


def _saturate(acc: torch.Tensor) -> torch.Tensor:
    if acc.numel() == 0 or acc.dtype == torch.float32:
        return acc
    clamped = acc.clamp(qint32.qmin, qint32.qmax)
    lost = int((clamped != acc).sum())
    if lost:
        note_saturation(lost)
    return clamped
