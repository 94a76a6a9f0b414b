"""Calls the compiled GEMM on held maps and rows: weights, offsets of the taps, panels of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qtune.arith.rounding import Int64Array
from qtune.arith_fast import buffers
from qtune.arith_fast.epilogue import Epilogue
from qtune.arith_fast.held import held_dtype, offset
from qtune.arith_fast.native import engine, gemm, products
from qtune.arith_fast.native.constants import Constants
from qtune.arith_fast.native.finish import SIZES, kind_of
from qtune.dtype import QuantDType, qint8

PANEL_BYTES = 1 << 16
"""Input of a panel: it stays in the cache while all output channels pass over it."""

FEW_ROWS = 512
"""Images of fewer rows than this share panels, so that their weights are read once."""

_TILE = 24
"""A multiple of every tile's rows."""

_SMALL = 16
"""Fewer input channels than this: the taps of a kernel row are one run of bytes."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Stride, pads (top, left, bottom, right) and dilation of a convolution."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]


POINTWISE = Geometry((1, 1), (0, 0, 0, 0), (1, 1))


class NativeConv:
    """``kernel(held x [N, I, H, W], out [N, OH, OW, O], addend like out or None)``."""

    def __init__(
        self, w: Int64Array, source: QuantDType, epilogue: Epilogue, geometry: Geometry
    ) -> None:
        self._flags = engine.isa()
        self._source = kind_of(held_dtype(source))
        self._zero, self._size = offset(source), SIZES[self._source]
        self._geometry = geometry
        outputs, inputs, height, width = w.shape
        word = products.steps_per_word(self._source)
        row_runs = geometry.dilation[1] == 1 and width > 1 and inputs < _SMALL
        self._copies = bool(inputs % word) or row_runs
        taps = w.transpose(0, 2, 3, 1).reshape(outputs, height * width, inputs)
        self._kernel = (height, width)
        if row_runs:
            taps, self._kernel = taps.reshape(outputs, height, width * inputs), (height, 1)
        is_point = (height, width) == (1, 1) and tuple(geometry.stride) == (1, 1)
        self._table = not (is_point and not any(geometry.padding))
        self._window = [(w.shape[2 + i] - 1) * geometry.dilation[i] + 1 for i in range(2)]
        self._taps, self._steps = taps.shape[1], -(-taps.shape[2] // word)
        widths = products.block_widths(outputs, self._flags.lanes, gemm.widest(self._flags))
        self._blocks = [widths.count(i + 1) for i in range(gemm.widest(self._flags))]
        self._weights = torch.from_numpy(
            products.packed(taps, self._source, self._flags, _descending(widths))
        )
        self._pad = torch.full((taps.shape[2] + word,), self._zero, dtype=held_dtype(source))
        size = sum(widths) * self._flags.lanes
        self._constants = Constants(epilogue, -self._zero * w.sum(axis=(1, 2, 3)), size)
        self._ready: dict[tuple[object, ...], engine.Launch] = {}

    def __call__(
        self, x: torch.Tensor, out: torch.Tensor, addend: torch.Tensor | None = None
    ) -> None:
        """Fill ``out``; x and out in channels_last order, ``addend`` contiguous."""
        if self._copies:
            x = self._copied(x)
        kind = None if addend is None else addend.dtype
        key = (x.shape, kind, torch.get_num_threads())
        launch = self._ready.get(key)
        if launch is None:
            if len(self._ready) >= engine.MOST_SHAPES:
                self._ready.clear()
            launch = self._ready[key] = self._prepared(x.shape, out, kind)
        launch(
            (gemm.P.X, x.data_ptr()),
            (gemm.P.OUT, out.data_ptr()),
            (gemm.P.OPERAND, 0 if addend is None else addend.data_ptr()),
        )

    def _prepared(
        self, shape: Sequence[int], out: torch.Tensor, operand: torch.dtype | None
    ) -> engine.Launch:
        """The call for inputs of one shape; addresses of tensors that change are 0."""
        channels, (images, tall, wide) = out.shape[3], out.shape[:3]
        rows, merged = tall * wide, not self._table or tall * wide < FEW_ROWS
        pixel = shape[1] * self._size
        padding = (0, 0, 0, 0) if self._copies else self._geometry.padding
        offsets = self._offsets(shape, padding, out.shape, merged) if self._table else None
        if merged:
            rows, images = rows * images, 1
        panel = self._panel_rows(rows, images, pixel)
        panels = -(-rows // panel)
        form = gemm.Form(
            self._source,
            kind_of(out.dtype),
            None if operand is None else kind_of(operand),
            self._table,
            self._constants.near,
        )
        parameters = [
            0, 0 if offsets is None else offsets.data_ptr(), self._pad.data_ptr(),
            self._weights.data_ptr(), 0, *self._constants.addresses(), 0,
            *self._constants.operand_addresses(), self._taps, self._steps, rows,
            shape[2] * shape[3] * pixel, pixel, channels, panels, panel, *self._blocks,
        ]  # fmt: skip
        outputs = rows * images * channels
        cost = outputs * (0.2 + self._taps * self._steps / 64)
        return gemm.kernel(form, self._flags).ready(parameters, images * panels, offsets, cost)

    def _panel_rows(self, rows: int, images: int, pixel: int) -> int:
        most = max(PANEL_BYTES // pixel, 8 * _TILE)
        threads = torch.get_num_threads()
        share = -(-rows * images // (1 if threads == 1 else 2 * threads))
        return _TILE * max(1, -(-min(most, share, rows) // _TILE))

    def _copied(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` among its pads, readable a word beyond its end."""
        top, left, bottom, right = self._geometry.padding
        images, channels, height, width = x.shape
        shape = (images, height + top + bottom, width + left + right, channels)
        buffer = buffers.empty((math.prod(shape) + 8,), x.dtype)
        grown = buffer[: math.prod(shape)].view(shape)
        inner = x[:, :, max(-top, 0) : height - max(-bottom, 0), max(-left, 0) :]
        inner = inner[:, :, :, : inner.shape[3] - max(-right, 0)].permute(0, 2, 3, 1)
        y, z = max(top, 0), max(left, 0)
        # NumPy copies in this thread: torch's OpenMP threads spin on for a while and would keep
        # the kernel's own threads from their cores.
        buffer.numpy().fill(self._zero)
        grown.numpy()[:, y : y + inner.shape[1], z : z + inner.shape[2]] = inner.numpy()
        return grown.permute(0, 3, 1, 2)

    def _offsets(
        self, shape: Sequence[int], padding: Sequence[int], out: Sequence[int], merged: bool
    ) -> torch.Tensor:
        """int32 [rows, taps]: bytes from the image's (or batch's) start, -1 in the pads."""
        images, channels, *size = shape
        y, z = (
            np.arange(out[1 + i])[:, None] * self._geometry.stride[i]
            + np.arange(self._kernel[i]) * self._geometry.dilation[i]
            - padding[i]
            for i in range(2)
        )
        y, z = y[:, None, :, None], z[None, :, None, :]
        place = (y * size[1] + z) * channels * self._size
        inside = (y >= 0) & (y < size[0]) & (z >= 0) & (z < size[1])
        step = size[0] * size[1] * channels * self._size
        starts = np.arange(images if merged else 1)[:, None, None, None, None] * step
        table = np.where(inside, place + starts, -1).astype(np.int32)
        return torch.from_numpy(np.ascontiguousarray(table))

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether the offsets of maps of this shape fit 31 bits."""
        pads = self._geometry.padding
        grown = [
            shape[2 + i] + self._window[i] + max(pads[i], 0) + max(pads[i + 2], 0) for i in range(2)
        ]
        return bool(shape[0] * shape[1] * grown[0] * grown[1] * self._size < 1 << 31)


def native_conv(
    w: Int64Array,
    source: QuantDType,
    epilogue: Epilogue,
    geometry: Geometry,
) -> NativeConv | None:
    """Return the compiled kernel for weights [O, I, kh, kw], or ``None`` where it would not fit.

    The sums and their rescaled operand must fit int32, the requantize float64, weights a byte.
    """
    if not engine.available() or not engine.isa().x86 or not Constants.fit(epilogue):
        return None
    if w.size == 0 or int(w.min()) < qint8.qmin or int(w.max()) > qint8.qmax:
        return None
    return NativeConv(w, source, epilogue, geometry)


def _descending(widths: list[int]) -> list[int]:
    return sorted(widths, reverse=True)
