"""Strategies for what operators compute on: codes, real numbers, scales, shapes, accumulators.

A tensor is one choice of hypothesis, a block of bytes that is repeated until the tensor is full:
drawing costs the same for any shape, and a shape can shrink without a change of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from qtune.arith.rounding import Int64Array
from qtune.dtype import QuantDType, quant_dtype
from qtune.errors import ArgumentError

PERIOD = 61
"""Elements of one block; a prime, so that no axis of a tensor has its period."""

SMALL, ENDS, MIXED = "small", "ends", "mixed"
STYLES = (SMALL, MIXED, ENDS, MIXED)
"""What the codes of one tensor are: near 0 (ties of a requantize by a power of two), the ends of
the grid (saturating sums), or anything with the ends over-weighted."""

NEAR_ZERO = (0, 1, -1, 2, -2, 3, -3)
_SPECIAL_SHARE = 1 << 14  # of 1 << 16: a quarter
_SPREAD = 40503  # odd: neighbouring bytes give codes far apart
_DTYPES = {8: torch.int8, 16: torch.int16, 32: torch.int32}

AnyShape = Sequence[int] | st.SearchStrategy[tuple[int, ...]]


def shapes(min_dims: int = 1, max_dims: int = 4, max_size: int = 5) -> st.SearchStrategy[Any]:
    """Shapes of few dimensions with few elements, smallest first."""
    sizes = st.integers(1, max_size)
    return st.lists(sizes, min_size=min_dims, max_size=max_dims).map(tuple)


def scales(low: int = -12, high: int = 4) -> st.SearchStrategy[float]:
    """Scales from ``2**low`` to ``2**high``, each exactly a float32.

    Half of them are powers of two, with which requantize meets exact ties. Shrinks to 1.
    """
    powers = st.integers(low, high).map(lambda k: 2.0**k)
    return st.one_of(powers, st.builds(_scale, st.integers(low, high - 1), st.integers(1, 255)))


def _scale(exponent: int, part: int) -> float:
    return float(np.float32(2.0**exponent * (1 + part / 257)))


@st.composite
def codes(
    draw: Any,
    shape: AnyShape = (),
    dtype: QuantDType | str = "qint8",
    style: str | None = None,
) -> Tensor:
    """Codes of ``dtype`` as a tensor of int8, int16 or int32 and the given (or drawn) shape.

    ``style``: ``"small"``, ``"ends"``, ``"mixed"``; drawn where it is ``None``.
    """
    grid = quant_dtype(dtype)
    values = draw(code_arrays(_shape(draw, shape), grid, style))
    return torch.from_numpy(values).to(_DTYPES[grid.bits])


@st.composite
def code_arrays(
    draw: Any, shape: tuple[int, ...], grid: QuantDType, style: str | None = None
) -> Int64Array:
    """As :func:`codes`, as an int64 array."""
    if style is not None and style not in STYLES:
        raise ArgumentError(f"codes: style must be one of {sorted(set(STYLES))}, got {style!r}")
    chosen = draw(st.sampled_from(STYLES)) if style is None else style
    return _filled(_as_codes(_numbers(draw), grid, chosen), shape)


def _numbers(draw: Any) -> Int64Array:
    """A block of numbers below 2**16, which shrink towards 0."""
    block = draw(st.binary(min_size=2 * PERIOD, max_size=2 * PERIOD))
    return np.frombuffer(block, dtype=">u2").astype(np.int64)


def _as_codes(numbers: Int64Array, grid: QuantDType, style: str) -> Int64Array:
    lo, hi = grid.qmin, grid.qmax
    near, ends = np.array(NEAR_ZERO), np.array([hi, lo, hi - 1, lo + 1])
    if style == SMALL:
        return near[numbers % len(near)]
    if style == ENDS:
        return ends[numbers % len(ends)]
    special = np.concatenate([near[:3], ends])
    spread = (numbers * _SPREAD) % (hi - lo + 1) + lo
    return np.where(numbers < _SPECIAL_SHARE, special[numbers % len(special)], spread)


def _filled(block: Int64Array, shape: tuple[int, ...]) -> Int64Array:
    return np.resize(block, shape) if shape else np.asarray(block[0])


@st.composite
def tensors(
    draw: Any,
    shape: AnyShape = (),
    dtype: QuantDType | str = "qint8",
    scale: float | st.SearchStrategy[float] = 1.0,
    style: str | None = None,
) -> Tensor:
    """Real numbers on the grid, ``codes * scale``, float32."""
    grid = quant_dtype(dtype)
    found = draw(code_arrays(_shape(draw, shape), grid, style)).astype(np.float64)
    return _real(found * _number(draw, scale))


@st.composite
def real_values(
    draw: Any,
    shape: AnyShape = (),
    dtype: QuantDType | str = "qint8",
    scale: float | st.SearchStrategy[float] = 1.0,
) -> Tensor:
    """Real numbers about the grid, float32: on it, on its ties, next to both, and beyond its ends.

    A tie is ``(code + 0.5) * scale``; next to it is the nearest float32 on either side.
    """
    grid, size = quant_dtype(dtype), _shape(draw, shape)
    found = draw(code_arrays(size, grid)).astype(np.float64)
    kind = _filled(_numbers(draw) % len(_OFFSETS), size)
    exact = (found + np.array(_OFFSETS)[kind]) * _number(draw, scale)
    values = exact.astype(np.float32)
    towards = np.array(_DIRECTIONS, dtype=np.float32)[kind]
    return _real(np.where(towards == 0, values, np.nextafter(values, towards)))


_OFFSETS = (0.0, 0.5, -0.5, 0.5, 0.5, 0.25, 3.0)
_DIRECTIONS = (0.0, 0.0, 0.0, np.inf, -np.inf, 0.0, 0.0)


@st.composite
def accumulators(draw: Any, shape: AnyShape = (), bits: int = 32) -> Tensor:
    """Sums as a GEMM makes them, int64: small ones, any, and those about the ends of ``bits``.

    Some lie beyond the ends, where an accumulator saturates.
    """
    if not 2 <= bits <= 62:
        raise ArgumentError(f"accumulators: bits must be 2 to 62, got {bits}")
    half, size = 1 << (bits - 1), _shape(draw, shape)
    small = draw(code_arrays(size, quant_dtype("qint16")))
    kind = _filled(_numbers(draw) % 4, size)
    at_ends = np.where(small < 0, -half, half - 1) + small // 4096
    anywhere = small * max(1, half >> 15)
    chosen = np.select([kind == 0, kind == 1], [np.fmod(small, 512), anywhere], at_ends)
    return torch.from_numpy(np.asarray(chosen, dtype=np.int64))


def _shape(draw: Any, shape: AnyShape) -> tuple[int, ...]:
    if isinstance(shape, st.SearchStrategy):
        return tuple(draw(shape))
    return tuple(int(size) for size in shape)


def _number(draw: Any, scale: float | st.SearchStrategy[float]) -> float:
    return float(draw(scale) if isinstance(scale, st.SearchStrategy) else scale)


def _real(values: Any) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32))
