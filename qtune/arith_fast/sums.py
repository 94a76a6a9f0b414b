"""Exact sums of products on held codes, as rows in memory order (numerics.md section 7)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from qtune.arith.rounding import Int64Array
from qtune.arith_fast.capability import guard, int8_exact
from qtune.arith_fast.onednn import Int8Conv, Int8Linear, takes
from qtune.arith_fast.terms import Term, XPart, terms, x_parts
from qtune.dtype import QuantDType


class FloatConv:
    """The same as ``onednn.Int8Conv`` in float32: exact inside the terms' bound under the guard."""

    def __init__(
        self,
        w: torch.Tensor,
        zero: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        factor: int,
    ) -> None:
        self._w = (w * factor).to(torch.float32).contiguous(memory_format=torch.channels_last)
        self._zero = zero
        self._geometry = (list(stride), list(padding), list(dilation), groups)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 [N, O, H, W] for uint8 [N, I, H, W]."""
        with guard():
            return F.conv2d(x.to(torch.float32).sub_(self._zero), self._w, None, *self._geometry)


class FloatLinear:
    """The same as ``onednn.Int8Linear`` in float32."""

    def __init__(self, w: torch.Tensor, zero: int, factor: int) -> None:
        self._w, self._zero = (w * factor).to(torch.float32), zero

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 [R, O] for uint8 [R, I]."""
        with guard():
            return F.linear(x.to(torch.float32).sub_(self._zero), self._w)


class ConvSums:
    """Sums of a convolution: ``sums(held x)`` gives parts [N * H * W, O] that add up to them.

    The parts are float32 and hold exact integers; rows lie in channels_last order. The kernels are
    made at the first call.
    """

    def __init__(
        self,
        w: Int64Array,
        dtype: QuantDType,
        code_range: tuple[int, int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        top, left, bottom, right = padding
        even = top == bottom >= 0 and left == right >= 0
        inner = [top, left] if even else [0, 0]
        self._grow = [left, right, top, bottom]
        self._pad = None if even else self._grow
        self._window = [(w.shape[2 + i] - 1) * dilation[i] + 1 for i in range(2)]
        self._stride = list(stride)
        self.channels = w.shape[0]
        kind = Int8Conv if int8_exact() and takes(w.shape, groups) else FloatConv

        @functools.cache
        def engines() -> list[tuple[Term, Int8Conv | FloatConv]]:
            return [
                (t, kind(_tensor(t), t.part.zero, stride, inner, dilation, groups, t.coefficient))
                for t in terms(w, x_parts(dtype, code_range), groups)
            ]

        self._engines = engines

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the output's height and width."""
        left, right, top, bottom = self._grow
        grown = (height + top + bottom, width + left + right)
        tall, wide = ((grown[i] - self._window[i]) // self._stride[i] + 1 for i in range(2))
        return tall, wide

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of the sums of a held map."""
        bytes_of = _ByteParts(x, self._pad)
        return [
            _all_channels(_rows(engine(bytes_of(term.part))), term, self.channels)
            for term, engine in self._engines()
        ]


class LinearSums:
    """Sums of a linear layer: ``sums(held rows [R, I])`` gives parts [R, O], as ``ConvSums``."""

    def __init__(
        self, w: Int64Array, dtype: QuantDType, code_range: tuple[int, int] | None
    ) -> None:
        self.channels = w.shape[0]
        kind = Int8Linear if int8_exact() else FloatLinear

        @functools.cache
        def engines() -> list[tuple[Term, Int8Linear | FloatLinear]]:
            return [
                (t, kind(_tensor(t), t.part.zero, t.coefficient))
                for t in terms(w, x_parts(dtype, code_range), 1)
            ]

        self._engines = engines

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of the sums of held rows."""
        bytes_of = _ByteParts(x, None)
        return [
            _all_channels(engine(bytes_of(term.part)), term, self.channels)
            for term, engine in self._engines()
        ]


class _ByteParts:
    """The byte parts of one input, each made once, padded where the engine can't."""

    def __init__(self, x: torch.Tensor, pad: list[int] | None) -> None:
        self._x, self._pad = x, pad
        self._made: dict[str, torch.Tensor] = {}

    def __call__(self, part: XPart) -> torch.Tensor:
        if part.kind not in self._made:
            piece = _byte_part(self._x, part)
            if self._pad is not None:
                piece = F.pad(piece, self._pad, value=part.zero)
            self._made[part.kind] = piece
        return self._made[part.kind]


def _byte_part(x: torch.Tensor, part: XPart) -> torch.Tensor:
    """A part of held codes as uint8 in the memory format of ``x``."""
    if part.kind == "whole":
        return x
    if part.kind == "high":
        return (x >> 8).add_(part.zero).to(torch.uint8)
    return (x & 255).to(torch.uint8)


def _tensor(term: Term) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(term.weights))


def _all_channels(rows: torch.Tensor, term: Term, channels: int) -> torch.Tensor:
    """Rows of a term's own channels among zeros of the others."""
    if term.rows is None:
        return rows
    full = torch.zeros((rows.shape[0], channels))
    full[:, torch.from_numpy(term.rows)] = rows
    return full


def _rows(result: torch.Tensor) -> torch.Tensor:
    """A map as rows of channels in channels_last order."""
    channels = result.shape[1]
    if result.is_contiguous(memory_format=torch.channels_last):
        return result.as_strided((result.numel() // channels, channels), (channels, 1))
    return result.permute(0, 2, 3, 1).reshape(-1, channels)
