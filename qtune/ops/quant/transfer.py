"""Kernels of Quantize, Dequantize, DequantizeAcc and Requantize (numerics.md sections 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from qtune.arith.quantize import dequantize, quantize
from qtune.arith.requantize import rescale
from qtune.arith_fast.fake_quantize import dequantize_held, quantize_held
from qtune.arith_fast.held import channels_last, held_dtype, offset
from qtune.arith_fast.requantize import Requantizer
from qtune.errors import NonFiniteError
from qtune.ops.kernel import FastKernel, HbirKernel, KernelNode
from qtune.ops.quant.codes import carrier, input_dtype, output_dtype, range_dtype
from qtune.ops.quant.fake_quant import quantize_half_even
from qtune.ops.registry import register_kernel

Array = np.ndarray[Any, Any]


def _quantize(attrs: Mapping[str, Any], x: Array, scale: Array) -> Array:
    return quantize(x, scale, range_dtype(attrs))


def _fast_quantize(node: KernelNode) -> FastKernel:
    scale = torch.from_numpy(np.array(node.constants[1], dtype=np.float32))
    dtype = range_dtype(node.attrs)
    return lambda x: quantize_held(x, scale, dtype)


def _quantize_half_even(attrs: Mapping[str, Any], x: Array, scale: Array) -> Array:
    _refuse_nan(bool(np.isnan(x).any()))
    codes = quantize_half_even(x, scale, carrier(attrs["qmin"], attrs["qmax"]))
    return np.clip(codes, attrs["qmin"], attrs["qmax"])


def _fast_quantize_half_even(node: KernelNode) -> FastKernel:
    scale = float(node.constants[1].reshape(()))
    low, high = node.attrs["qmin"], node.attrs["qmax"]
    dtype = carrier(low, high)

    def run(x: torch.Tensor) -> torch.Tensor:
        _refuse_nan(bool(torch.isnan(x).any()))
        step = torch.tensor(scale, dtype=torch.float32)
        codes = torch.round(x / step).clamp_(low, high)
        return channels_last(codes.add_(offset(dtype)).to(held_dtype(dtype)))

    return run


def _refuse_nan(found: bool) -> None:
    if found:
        raise NonFiniteError(
            "QuantizeHalfEven got NaN: NaN has no code. Remove the NaN from the data or from the "
            "operator that makes it"
        )


def _dequantize(attrs: Mapping[str, Any], q: Array, scale: Array) -> Array:
    return dequantize(q, scale)


def _fast_dequantize(node: KernelNode) -> FastKernel:
    scale = torch.from_numpy(np.array(node.constants[1], dtype=np.float32))
    return lambda q: dequantize_held(q, scale)


def _dequantize_acc(attrs: Mapping[str, Any], acc: Array, s_x: Array, s_w: Array) -> Array:
    product = acc.astype(np.float64) * s_x.astype(np.float64) * s_w.astype(np.float64)
    return product.astype(np.float32)


def _fast_dequantize_acc(node: KernelNode) -> FastKernel:
    s_x, s_w = (torch.from_numpy(node.constants[index].astype(np.float64)) for index in (1, 2))
    return lambda acc: acc.double().mul_(s_x).mul_(s_w).float()


def _requantize(attrs: Mapping[str, Any], q: Array, m: Array, n: Array) -> Array:
    return np.clip(rescale(q, m, n), attrs["lo"], attrs["hi"])


def _fast_requantize(node: KernelNode) -> FastKernel:
    source = input_dtype(node, 0)
    m, n = (node.constants[index].reshape(-1).astype(np.int64) for index in (1, 2))
    return Requantizer(
        m,
        n,
        lo=node.attrs["lo"],
        hi=node.attrs["hi"],
        out=output_dtype(node),
        bound=-source.qmin,
        zero=offset(source),
        axis=-max(node.constants[1].ndim, 1),
    )


register_kernel(HbirKernel("Quantize", "qtune", reference=_quantize, fast=_fast_quantize))
register_kernel(
    HbirKernel(
        "QuantizeHalfEven",
        "qtune",
        reference=_quantize_half_even,
        fast=_fast_quantize_half_even,
    )
)
register_kernel(HbirKernel("Dequantize", "qtune", reference=_dequantize, fast=_fast_dequantize))
register_kernel(
    HbirKernel("DequantizeAcc", "qtune", reference=_dequantize_acc, fast=_fast_dequantize_acc)
)
register_kernel(HbirKernel("Requantize", "qtune", reference=_requantize, fast=_fast_requantize))
