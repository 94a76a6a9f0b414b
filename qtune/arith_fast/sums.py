"""Exact sums of products on held codes, as rows in memory order (numerics.md section 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from qtune.arith.rounding import Int64Array
from qtune.arith_fast.capability import guard, int8_exact
from qtune.arith_fast.onednn import Int8Conv, Int8Linear
from qtune.arith_fast.terms import Term, XPart, terms, x_parts
from qtune.dtype import QuantDType

Engine = Callable[[torch.Tensor], torch.Tensor]
"""``uint8 bytes -> float32 rows [rows, output channels]`` of one term."""


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
    ) -> None:
        self._w = w.to(torch.float32).contiguous(memory_format=torch.channels_last)
        self._zero = zero
        self._geometry = (list(stride), list(padding), list(dilation), groups)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 [N, O, H, W] for uint8 [N, I, H, W]."""
        with guard():
            return F.conv2d(x.to(torch.float32).sub_(self._zero), self._w, None, *self._geometry)


class FloatLinear:
    """The same as ``onednn.Int8Linear`` in float32."""

    def __init__(self, w: torch.Tensor, zero: int) -> None:
        self._w, self._zero = w.to(torch.float32), zero

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 [R, O] for uint8 [R, I]."""
        with guard():
            return F.linear(x.to(torch.float32).sub_(self._zero), self._w)


class ConvSums:
    """Sums of a convolution: ``sums(held x) -> [N * H * W, O]``, float32 or float64 integers."""

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
        self._even = top == bottom and left == right and top >= 0 and left >= 0
        inner = [top, left] if self._even else [0, 0]
        self._pad = [left, right, top, bottom]
        self._window = [(w.shape[2 + i] - 1) * dilation[i] + 1 for i in range(2)]
        self._stride = list(stride)
        self.channels = w.shape[0]
        kind = Int8Conv if int8_exact() else FloatConv
        self._parts = _grouped(terms(w, x_parts(dtype, code_range), groups))
        self._engines: list[Engine] = [
            _rows_of_map(
                kind(torch.from_numpy(t.weights), t.part.zero, stride, inner, dilation, groups)
            )
            for _, group in self._parts
            for t in group
        ]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the output's height and width."""
        left, right, top, bottom = self._pad
        grown = (height + top + bottom, width + left + right)
        tall, wide = ((grown[i] - self._window[i]) // self._stride[i] + 1 for i in range(2))
        return tall, wide

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sums of a held map, rows in channels_last order."""
        return _total(x, self._parts, self._engines, None if self._even else self._pad)


class LinearSums:
    """Sums of a linear layer: ``sums(held rows [R, I]) -> [R, O]``."""

    def __init__(
        self, w: Int64Array, dtype: QuantDType, code_range: tuple[int, int] | None
    ) -> None:
        self.channels = w.shape[0]
        kind = Int8Linear if int8_exact() else FloatLinear
        self._parts = _grouped(terms(w, x_parts(dtype, code_range), 1))
        self._engines: list[Engine] = [
            kind(torch.from_numpy(t.weights), t.part.zero)
            for _, group in self._parts
            for t in group
        ]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sums of held rows."""
        return _total(x, self._parts, self._engines, None)


def byte_part(x: torch.Tensor, part: XPart) -> torch.Tensor:
    """Return a part of held codes as uint8 in the memory format of ``x``."""
    if part.kind == "whole":
        return x
    if part.kind == "high":
        return (x >> 8).add_(part.zero).to(torch.uint8)
    return (x & 255).to(torch.uint8)


def _grouped(found: list[Term]) -> list[tuple[XPart, list[Term]]]:
    """Terms by activation part, so that each part is made once."""
    parts: list[tuple[XPart, list[Term]]] = []
    for term in found:
        if not parts or parts[-1][0] is not term.part:
            parts.append((term.part, []))
        parts[-1][1].append(term)
    return parts


def _total(
    x: torch.Tensor,
    parts: list[tuple[XPart, list[Term]]],
    engines: list[Engine],
    pad: list[int] | None,
) -> torch.Tensor:
    if len(engines) == 1 and pad is None:
        return engines[0](byte_part(x, parts[0][0]))
    total: torch.Tensor | None = None
    remaining = iter(engines)
    for part, group in parts:
        piece = byte_part(x, part)
        if pad is not None:
            piece = F.pad(piece, pad, value=part.zero)
        for term in group:
            rows = next(remaining)(piece)
            if len(engines) == 1:
                return rows
            if total is None:
                total = rows.double().mul_(term.coefficient)
            elif term.rows is None:
                total.add_(rows.double(), alpha=term.coefficient)
            else:
                index = torch.from_numpy(term.rows)
                total.index_add_(1, index, rows.double(), alpha=term.coefficient)
    if total is None:
        raise ValueError("a GEMM needs at least one term")
    return total


def _tensor(term: Term) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(term.weights))


def _rows_of_map(conv: Engine) -> Engine:
    def rows(x: torch.Tensor) -> torch.Tensor:
        result = conv(x)
        channels = result.shape[1]
        if result.is_contiguous(memory_format=torch.channels_last):
            return result.as_strided((result.numel() // channels, channels), (channels, 1))
        return result.permute(0, 2, 3, 1).reshape(-1, channels)

    return rows
