"""A transposed convolution as plain ones, one for each residue of the stride.

Output row ``y`` of the full result gets ``x[i] * w[k]`` where ``y = stride * i + dilation * k``.
Rows of one residue modulo the stride use the same taps ``k``, so they are a convolution of stride 1
with those taps: no zeros are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from qtune.arith.rounding import Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A convolution of stride 1 whose result fills ``out[:, :, start[0]::s0, start[1]::s1]``.

    ``weights`` [O, I/groups, kh, kw]; ``padding`` (top, left, bottom, right), negative where it
    cuts the input.
    """

    weights: Int64Array
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    start: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Line:
    """A phase along one dimension: taps, their spread in the input, pads, first output."""

    taps: tuple[int, ...]
    dilation: int
    before: int
    after: int
    start: int


def phases(
    w: Int64Array,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> list[Phase]:
    """Return the phases of transposed-convolution weights [I, O/groups, kh, kw]."""
    plain = as_convolution(w, groups)
    covered = reach(w.shape[2:], padding, output_padding, dilation)
    lines = [
        list(_lines(w.shape[2 + i], stride[i], padding[i], covered[i], dilation[i]))
        for i in range(2)
    ]
    return [
        Phase(
            _picked(plain, rows.taps, columns.taps),
            (rows.before, columns.before, rows.after, columns.after),
            (rows.dilation, columns.dilation),
            (rows.start, columns.start),
        )
        for rows in lines[0]
        for columns in lines[1]
    ]


def reach(
    kernel: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int]:
    """Return what one input element covers: the output has ``(in - 1) * stride + reach`` rows."""
    height, width = (
        dilation[i] * (kernel[i] - 1) + 1 + output_padding[i] - padding[i] - padding[i + 2]
        for i in range(2)
    )
    return height, width


def as_convolution(w: Int64Array, groups: int) -> Int64Array:
    """Return weights [I, O/g, kh, kw] as [O, I/g, kh, kw]."""
    inputs, outputs, height, width = w.shape
    split = w.reshape(groups, inputs // groups, outputs, height, width).swapaxes(1, 2)
    return np.ascontiguousarray(split).reshape(groups * outputs, inputs // groups, height, width)


def _lines(kernel: int, stride: int, cut: int, covered: int, dilation: int) -> Iterator[_Line]:
    common = gcd(stride, dilation)
    spread = dilation // common
    for start in range(stride):
        residue = (start + cut) % stride
        taps = [k for k in range(kernel) if (residue - dilation * k) % stride == 0]
        # Output start + stride * u, tap t reads input first + u - t * spread.
        first = (start + cut - dilation * taps[0]) // stride if taps else 0
        span = spread * max(len(taps) - 1, 0)
        # Of (in - 1) * stride + covered outputs, this phase has in + more.
        more = -(-(covered - stride - start) // stride)
        before = span - first
        yield _Line(tuple(reversed(taps)), spread, before, more - before + span, start)


def _picked(w: Int64Array, rows: tuple[int, ...], columns: tuple[int, ...]) -> Int64Array:
    """The taps of a phase; a phase without any has one zero tap."""
    if not rows or not columns:
        return np.zeros((*w.shape[:2], max(len(rows), 1), max(len(columns), 1)), dtype=np.int64)
    return np.ascontiguousarray(w[:, :, rows][:, :, :, columns])
