"""Exact GEMMs in NumPy int64, the first oracle of the integer kernels (numerics.md section 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qtune.arith.requantize import rescale
from qtune.ops.gemm.geometry import split_pads
from qtune.ops.gemm.saturation import saturate_accumulator

Array = np.ndarray[Any, Any]
Accumulate = Callable[[Mapping[str, Any], Array, Array], Array]
"""``accumulate(attrs, x codes, w codes)`` -> exact sums, before the bias."""


def conv(attrs: Mapping[str, Any], x: Array, w: Array) -> Array:
    """Sum ``x * w`` of a convolution: x [N, I, ...], w [O, I / group, ...], any spatial rank."""
    group, strides, dilations = attrs["group"], attrs["strides"], attrs["dilations"]
    begin, end = split_pads(attrs["pads"])
    x = np.pad(x, [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    batch, inputs, *size = x.shape
    outputs, _, *kernel = w.shape
    axes = zip(size, kernel, strides, dilations, strict=True)
    out = tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in axes)
    grouped = w.reshape(group, outputs // group, inputs // group, *kernel)
    acc = np.zeros((batch, group, outputs // group, int(np.prod(out))), dtype=np.int64)
    for tap in np.ndindex(*kernel):
        window = x[_positions(tap, dilations, strides, out)]
        acc += grouped[(..., *tap)] @ window.reshape(batch, group, inputs // group, acc.shape[-1])
    return acc.reshape(batch, outputs, *out)


def conv_transpose(attrs: Mapping[str, Any], x: Array, w: Array) -> Array:
    """Sum ``x * w`` of a transposed convolution: x [N, I, ...], w [I, O / group, ...]."""
    group, strides, dilations = attrs["group"], attrs["strides"], attrs["dilations"]
    begin, end = split_pads(attrs["pads"])
    batch, inputs, *size = x.shape
    _, outputs, *kernel = w.shape
    axes = zip(size, kernel, strides, dilations, attrs["output_padding"], strict=True)
    full = tuple((n - 1) * s + d * (k - 1) + 1 + extra for n, k, s, d, extra in axes)
    grouped = w.reshape(group, inputs // group, outputs, *kernel).swapaxes(1, 2)
    points = x.reshape(batch, group, inputs // group, int(np.prod(size)))
    canvas = np.zeros((batch, group * outputs, *full), dtype=np.int64)
    for tap in np.ndindex(*kernel):
        part = grouped[(..., *tap)] @ points
        canvas[_positions(tap, dilations, strides, size)] += part.reshape(
            batch, group * outputs, *size
        )
    crop: list[Any] = [slice(b, n - e) for b, e, n in zip(begin, end, full, strict=True)]
    return np.asarray(canvas[(..., *crop)])


def linear(attrs: Mapping[str, Any], x: Array, w: Array) -> Array:
    """Sum ``x @ w.T``: x [..., I], w [O, I]."""
    return np.asarray(x @ w.T)


def matmul(attrs: Mapping[str, Any], a: Array, b: Array) -> Array:
    """Sum ``a @ b`` with NumPy's broadcasting."""
    return np.asarray(a @ b)


def add_bias(acc: Array, bias: Array, bits: int) -> Array:
    """Add the bias codes and saturate to the accumulator."""
    return saturate_accumulator(acc + bias, bits)


def add_addend(acc: Array, addend: Array, m: Array, n: Array, bits: int) -> Array:
    """Add an addend rescaled to the accumulator's grid (numerics.md section 2.4)."""
    return saturate_accumulator(acc + rescale(addend, m, n), bits)


def finish(attrs: Mapping[str, Any], acc: Array, m: Array, n: Array) -> Array:
    """Requantize to the output's codes and clamp them to [lo, hi] (numerics.md section 2.3)."""
    return np.clip(rescale(acc, m, n), attrs["lo"], attrs["hi"])


def _positions(tap: Any, dilations: Any, strides: Any, count: Any) -> tuple[Any, ...]:
    """Index of the positions that kernel element ``tap`` meets: one slice per spatial axis."""
    axes = zip(tap, dilations, strides, count, strict=True)
    return (..., *(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in axes))
