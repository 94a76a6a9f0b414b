"""Depthwise convolutions on held maps: all taps of a few channels at a time, then their codes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from qtune.arith.rounding import Int64Array
from qtune.arith_fast.epilogue import Epilogue
from qtune.arith_fast.held import held_dtype, offset
from qtune.arith_fast.native import engine
from qtune.arith_fast.native.constants import Constants
from qtune.arith_fast.native.convolve import Geometry
from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa, Native, compiled
from qtune.arith_fast.native.finish import (
    SIZES,
    Sink,
    element,
    kind_of,
    limits,
)
from qtune.arith_fast.native.products import dot, pair_products
from qtune.dtype import QuantDType, qint8

MOST_TAPS = 49
"""Windows of more elements than this stay with torch: their code would be too long."""


class P(IntEnum):
    """Parameters of the kernel. ``FIRST .. STOP``: the columns whose windows need no pads."""

    X = 0
    PAD = 1
    WEIGHTS = 2
    OUT = 3
    BIAS = 4
    FACTOR = 5
    ADDEND = 6
    LIMITS = 7
    OPERAND = 8
    OPERAND_FACTOR = 9
    OPERAND_ADDEND = 10
    HEIGHT = 11
    WIDTH = 12
    OUT_HEIGHT = 13
    OUT_WIDTH = 14
    CHANNELS = 15
    STRIDE_Y = 16
    STRIDE_X = 17
    DILATION_Y = 18
    DILATION_X = 19
    TOP = 20
    LEFT = 21
    FIRST = 22
    STOP = 23


@dataclass(frozen=True, slots=True)
class Form:
    """What differs between compiled kernels: element kinds and the window."""

    source: str
    out: str
    operand: str | None
    height: int
    width: int
    near: bool


@functools.cache
def kernel(form: Form, flags: Isa) -> Native:
    """Return the compiled kernel; a unit of work is one row of the output."""
    code = Code("depthwise", flags)
    _Writer(code, form).write()
    return compiled(code.done(), code.name, flags)


def groups_of(taps: int, by_four: bool) -> list[int]:
    """How many taps are added at a time."""
    if not by_four:
        return [1] * taps
    return [4] * (taps // 4) + ([taps % 4] if taps % 4 else [])


class _Writer:
    def __init__(self, c: Code, form: Form) -> None:
        self.c, self.form = c, form
        self.value = {p: c.pointer(p) if p <= P.OPERAND_ADDEND else c.parameter(p) for p in P}
        self.size = SIZES[form.source]
        self.by_four = form.source == "u8" and c.isa.vnni
        self.groups = groups_of(form.height * form.width, self.by_four)
        v = self.value
        self.sink = Sink(
            c, form.out, form.operand, v[P.OUT], v[P.OPERAND], limits(c, P.LIMITS, form.near)
        )

    def write(self) -> None:
        self.c.loop(self.c.first, self.c.stop, 1, self._row)

    def _row(self, unit: Value) -> None:
        c, b, v = self.c, self.c.b, self.value
        image = b.udiv(unit, v[P.OUT_HEIGHT])
        y = b.urem(unit, v[P.OUT_HEIGHT])
        pixels = b.mul(unit, v[P.OUT_WIDTH])
        top = b.sub(b.mul(y, v[P.STRIDE_Y]), v[P.TOP])
        row_bytes = c.times(b.mul(v[P.WIDTH], v[P.CHANNELS]), self.size)
        before = b.mul(image, v[P.HEIGHT])
        sources = []
        for tap in range(self.form.height):
            source = b.add(top, c.times(v[P.DILATION_Y], tap) if tap else c.number(0))
            inside = b.icmp_unsigned("<", source, v[P.HEIGHT])
            place = c.at(v[P.X], b.mul(b.add(before, source), row_bytes))
            sources.append(b.select(inside, place, v[P.PAD]))
        c.loop(
            c.number(0),
            v[P.CHANNELS],
            c.lanes,
            lambda channel: self._channels(sources, pixels, channel),
        )

    def _channels(self, sources: list[Value], pixels: Value, channel: Value) -> None:
        c, b, v = self.c, self.c.b, self.value
        left = b.sub(v[P.CHANNELS], channel)
        full = b.icmp_signed(">=", left, c.number(c.lanes))
        c.either(
            full,
            lambda: self._columns(sources, pixels, channel, None),
            lambda: self._columns(sources, pixels, channel, c.mask(left)),
        )

    def _columns(
        self, sources: list[Value], pixels: Value, channel: Value, mask: Value | None
    ) -> None:
        c, v = self.c, self.value
        strip = _Strip(self, sources, pixels, channel, mask)
        c.loop(c.number(0), v[P.FIRST], 1, lambda x: strip.pixel(x, True))
        c.loop(v[P.FIRST], v[P.STOP], 1, lambda x: strip.pixel(x, False))
        c.loop(v[P.STOP], v[P.OUT_WIDTH], 1, lambda x: strip.pixel(x, True))


class _Strip:
    """One vector of channels along a row: weights and scales stay in registers."""

    def __init__(
        self,
        writer: _Writer,
        sources: list[Value],
        pixels: Value,
        channel: Value,
        mask: Value | None,
    ) -> None:
        c, b, v = writer.c, writer.c.b, writer.value
        self.w, self.c, self.v, self.mask = writer, c, v, mask
        self.channel, self.pixels = channel, pixels
        start = c.times(channel, writer.size)
        self.sources = [c.at(s, start) for s in sources]
        self.pad = c.at(v[P.PAD], start)
        kind = c.vector(c.i32)
        count = len(writer.groups)
        self.weights = [
            c.load(kind, c.at(v[P.WEIGHTS], c.times(b.add(c.times(channel, count),
                   c.number(g * c.lanes)), 4)))
            for g in range(count)
        ]  # fmt: skip
        self.bias = c.load(kind, c.at(v[P.BIAS], c.times(channel, 4)))
        scales = [v[p] for p in (P.FACTOR, P.ADDEND, P.OPERAND_FACTOR, P.OPERAND_ADDEND)]
        self.scales = writer.sink.scales(scales, channel)

    def pixel(self, x: Value, checked: bool) -> None:
        b, v = self.c.b, self.v
        first = b.sub(b.mul(x, v[P.STRIDE_X]), v[P.LEFT])
        taps = [
            self._tap(row, first, column, checked)
            for row in range(self.w.form.height)
            for column in range(self.w.form.width)
        ]
        acc, start = self.bias, 0
        for count, weights in zip(self.w.groups, self.weights, strict=True):
            acc = self._added(acc, taps[start : start + count], weights)
            start += count
        at = b.add(b.mul(b.add(self.pixels, x), v[P.CHANNELS]), self.channel)
        self.w.sink.write(acc, at, self.mask, self.scales)

    def _tap(self, row: int, first: Value, column: int, checked: bool) -> Value:
        c, b, v = self.c, self.c.b, self.v
        x = b.add(first, c.times(v[P.DILATION_X], column)) if column else first
        place = c.at(self.sources[row], c.times(b.mul(x, v[P.CHANNELS]), self.w.size))
        if checked:
            place = b.select(b.icmp_unsigned("<", x, v[P.WIDTH]), place, self.pad)
        kind = c.vector(element(c, self.w.form.source))
        return c.load(kind, place) if self.mask is None else c.masked_load(kind, place, self.mask)

    def _added(self, acc: Value, taps: list[Value], weights: Value) -> Value:
        c, kind = self.c, self.c.vector(self.c.i32)
        if len(taps) == 1:
            x = c.b.zext(taps[0], kind)
        else:
            taps = taps + [c.ir.Constant(taps[0].type, None)] * (4 - len(taps))
            pairs = [c.joined(taps[:2]), c.joined(taps[2:])]
            order = [t * c.lanes + lane for lane in range(c.lanes) for t in range(4)]
            x = c.b.bitcast(c.picked(pairs[0], pairs[1], order), kind)
        if self.w.by_four:
            return dot(c, "vpdpbusd", acc, x, weights)
        return c.b.add(acc, pair_products(c, x, weights))


class NativeDepthwise:
    """``kernel(held x [N, C, H, W], out [N, OH, OW, C], addend like out or None)``."""

    def __init__(
        self, w: Int64Array, source: QuantDType, epilogue: Epilogue, geometry: Geometry
    ) -> None:
        self._flags = engine.isa()
        self._source, self._zero = kind_of(held_dtype(source)), offset(source)
        self._geometry, self._window = geometry, w.shape[2:]
        channels, lanes = w.shape[0], self._flags.lanes
        size = -(-channels // lanes) * lanes
        self._ready: dict[tuple[object, ...], engine.Launch] = {}
        self._weights = torch.from_numpy(self._packed(w.reshape(channels, -1), size))
        self._constants = Constants(epilogue, -self._zero * w.sum(axis=(1, 2, 3)), size)

    def _packed(self, w: Int64Array, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
        """Weights [C, taps] as 32-bit words: vector of channels, group of taps, lane."""
        lanes, by_four = self._flags.lanes, self._source == "u8" and self._flags.vnni
        groups = groups_of(w.shape[1], by_four)
        full = np.zeros((size, len(groups), 4), dtype=np.int8)
        for group, count in enumerate(groups):
            start = sum(groups[:group])
            full[: len(w), group, :count] = w[:, start : start + count]
        words = full.reshape(size // lanes, lanes, len(groups), 4).swapaxes(1, 2)
        if not by_four:  # one tap: a 16-bit weight in the lower half of a word
            wide = np.zeros((*words.shape[:3], 2), dtype=np.int16)
            wide[..., 0] = words[..., 0]
            words = wide.view(np.int8)
        return np.ascontiguousarray(words)

    def __call__(
        self, x: torch.Tensor, out: torch.Tensor, addend: torch.Tensor | None = None
    ) -> None:
        """Fill ``out``; x and out in channels_last order, ``addend`` contiguous."""
        kind = None if addend is None else addend.dtype
        key = (x.shape, kind)
        launch = self._ready.get(key)
        if launch is None:
            if len(self._ready) >= engine.MOST_SHAPES:
                self._ready.clear()
            launch = self._ready[key] = self._prepared(x, out, kind)
        launch(
            (P.X, x.data_ptr()),
            (P.OUT, out.data_ptr()),
            (P.OPERAND, 0 if addend is None else addend.data_ptr()),
        )

    def _prepared(
        self, x: torch.Tensor, out: torch.Tensor, operand: torch.dtype | None
    ) -> engine.Launch:
        """The call for inputs of one shape; addresses of tensors that change are 0."""
        images, channels, height, width = x.shape
        g = self._geometry
        pad = torch.full((width * channels,), self._zero, dtype=x.dtype)
        first, stop = self._inner(width, out.shape[2])
        form = Form(
            self._source,
            kind_of(out.dtype),
            None if operand is None else kind_of(operand),
            self._window[0],
            self._window[1],
            self._constants.near,
        )
        parameters = [
            0, pad.data_ptr(), self._weights.data_ptr(), 0, *self._constants.addresses(), 0,
            *self._constants.operand_addresses(), height, width, out.shape[1], out.shape[2],
            channels, *g.stride, *g.dilation, g.padding[0], g.padding[1], first, stop,
        ]  # fmt: skip
        return kernel(form, self._flags).ready(
            parameters, images * out.shape[1], pad, cost=0.5 * out.numel()
        )

    def _inner(self, width: int, out_width: int) -> tuple[int, int]:
        """The columns of the output whose windows lie inside the rows."""
        g, reach = self._geometry, (self._window[1] - 1) * self._geometry.dilation[1]
        first = min(max(-(-g.padding[1] // g.stride[1]), 0), out_width)
        stop = (width - 1 - reach + g.padding[1]) // g.stride[1] + 1
        return first, min(max(stop, first), out_width)

    def takes(self, shape: Sequence[int]) -> bool:
        """Every map."""
        return True


def native_depthwise(
    w: Int64Array, source: QuantDType, epilogue: Epilogue, geometry: Geometry
) -> NativeDepthwise | None:
    """Return the compiled kernel for weights [C, 1, kh, kw] of C groups, or ``None``."""
    if not engine.available() or not engine.isa().x86 or not Constants.fit(epilogue):
        return None
    if w.size == 0 or int(w.min()) < qint8.qmin or int(w.max()) > qint8.qmax:
        return None
    if w.shape[2] * w.shape[3] > MOST_TAPS:
        return None
    return NativeDepthwise(w, source, epilogue, geometry)
