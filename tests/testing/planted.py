"""Faults as somebody might write them, each put into the fast kernel of one HBIR operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from qtune.arith_fast.held import channels_last
from qtune.ops import registry
from qtune.ops.kernel import FastKernel, HbirKernel, KernelNode

Array = np.ndarray[Any, Any]
Faulty = Callable[..., Any]
"""``faulty(reference, attrs, *arrays)``: plain codes in, plain codes out."""


def plant(patch: pytest.MonkeyPatch, op_type: str, faulty: Faulty, domain: str = "qtune") -> None:
    """Let the fast kernel of ``op_type`` be its reference, spoilt by ``faulty``."""
    kernel = registry.kernels()[domain, op_type]
    patch.setitem(registry._kernels, (domain, op_type), replace(kernel, fast=_fast(kernel, faulty)))


def _fast(kernel: HbirKernel, faulty: Faulty) -> Callable[[KernelNode], FastKernel]:
    def prepare(node: KernelNode) -> FastKernel:
        def run(*held: torch.Tensor) -> torch.Tensor:
            waiting = iter(held)
            arrays = [
                node.constants[i].astype(np.int64)
                if i in node.constants
                else _codes(next(waiting), dtype)
                for i, dtype in enumerate(node.input_dtypes)
            ]
            result = faulty(kernel.reference, node.attrs, *arrays)
            return _held(np.asarray(result), node.output_dtypes[0])

        return run

    return prepare


def _codes(held: torch.Tensor, dtype: str | None) -> Array:
    return held.to(torch.int64).numpy() - (128 if dtype == "int8" else 0)


def _held(codes: Array, dtype: str) -> torch.Tensor:
    """Codes beyond the dtype wrap, as they do in hardware that does not saturate."""
    if dtype == "int8":
        return channels_last(torch.from_numpy((codes + 128).astype(np.uint8)))
    return channels_last(torch.from_numpy(codes.astype(dtype)))


def half_even(product: Array, n: Array) -> Array:
    """``product / 2**n``, ties to the even neighbour."""
    floor, rest = product >> n, product & ((1 << n) - 1)
    half = np.where(n > 0, 1 << np.maximum(n - 1, 0), 1)
    return floor + ((rest > half) | ((rest == half) & (floor % 2 == 1)))


def half_away(product: Array, n: Array) -> Array:
    """``product / 2**n``, ties away from zero."""
    half = np.where(n > 0, 1 << np.maximum(n - 1, 0), 0)
    return np.sign(product) * ((np.abs(product) + half) >> n)


def rounded_product(rounding: Faulty) -> Faulty:
    """QMul with another rounding."""

    def faulty(
        reference: Faulty, attrs: Mapping[str, Any], a: Array, b: Array, *mn: Array
    ) -> Array:
        return np.clip(rounding(a * b * mn[0], mn[1]), attrs["lo"], attrs["hi"])

    return faulty


def wraps(reference: Faulty, attrs: Mapping[str, Any], *arrays: Array) -> Array:
    """The result is not saturated."""
    return reference({**attrs, "lo": -(1 << 40), "hi": 1 << 40}, *arrays)


def on_axis(shift: int) -> Faulty:
    """Along the neighbouring axis."""

    def faulty(reference: Faulty, attrs: Mapping[str, Any], *arrays: Array) -> Array:
        name = "axis" if "axis" in attrs else "axes"
        moved = (np.asarray(attrs[name]) + shift) % arrays[0].ndim
        return reference({**attrs, name: moved.tolist()}, *arrays)

    return faulty


def reversed_along(axis: int) -> Faulty:
    """Constants per channel, taken from the other end (``axis``: number of the input)."""

    def faulty(reference: Faulty, attrs: Mapping[str, Any], *arrays: Array) -> Array:
        changed = list(arrays)
        changed[axis] = np.flip(changed[axis])
        return reference(attrs, *changed)

    return faulty


def padding_moved(reference: Faulty, attrs: Mapping[str, Any], *arrays: Array) -> Array:
    """One element of the padding at the beginning is at the end instead."""
    pads = list(attrs["pads"])
    half = len(pads) // 2
    for i in range(half):
        if pads[i] > 0:
            pads[i], pads[i + half] = pads[i] - 1, pads[i + half] + 1
    return reference({**attrs, "pads": pads}, *arrays)


def without(index: int) -> Faulty:
    """An operand is taken for zeros (a dropped bias)."""

    def faulty(reference: Faulty, attrs: Mapping[str, Any], *arrays: Array) -> Array:
        changed = list(arrays)
        changed[index] = np.zeros_like(changed[index])
        return reference(attrs, *changed)

    return faulty


def shifted(index: int, by: int) -> Faulty:
    """A shift or another number is off by so much."""

    def faulty(reference: Faulty, attrs: Mapping[str, Any], *arrays: Array) -> Array:
        changed = list(arrays)
        changed[index] = changed[index] + by
        return reference(attrs, *changed)

    return faulty


def strides_mixed_up(reference: Faulty, attrs: Mapping[str, Any], x: Array, *rest: Array) -> Array:
    """Memory in channels_last order is read as if it were in channels_first order."""
    if x.ndim != 4:
        return reference(attrs, x, *rest)
    return reference(attrs, x.transpose(0, 2, 3, 1).reshape(x.shape), *rest)
