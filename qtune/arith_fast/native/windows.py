"""Maxima and sums over the windows of held maps in channels_last."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from qtune.arith_fast import buffers
from qtune.arith_fast.held import ZERO, offset, quant_dtype_of
from qtune.arith_fast.native import engine
from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa, Native, compiled
from qtune.arith_fast.native.finish import SIZES, element, kind_of


class P(IntEnum):
    """Parameters of the kernel."""

    X = 0
    OUT = 1
    HEIGHT = 2
    WIDTH = 3
    OUT_HEIGHT = 4
    OUT_WIDTH = 5
    CHANNELS = 6
    WINDOW_Y = 7
    WINDOW_X = 8
    STRIDE_Y = 9
    STRIDE_X = 10
    DILATION_Y = 11
    DILATION_X = 12
    TOP = 13
    LEFT = 14
    START = 15


@dataclass(frozen=True, slots=True)
class Form:
    """``sums``: int32 sums, else maxima."""

    source: str
    sums: bool


@functools.cache
def kernel(form: Form, flags: Isa) -> Native:
    """Return the compiled kernel; a unit of work is one row of the output."""
    code = Code("windows", flags)
    _Writer(code, form).write()
    return compiled(code.done(), code.name, flags)


class _Writer:
    def __init__(self, c: Code, form: Form) -> None:
        self.c, self.form = c, form
        self.value = {p: c.pointer(p) if p <= P.OUT else c.parameter(p) for p in P}
        self.source = element(c, form.source)
        self.element = c.i32 if form.sums else self.source

    def write(self) -> None:
        c, b, v = self.c, self.c.b, self.value

        def row(unit: Value) -> None:
            image, y = b.udiv(unit, v[P.OUT_HEIGHT]), b.urem(unit, v[P.OUT_HEIGHT])
            top = b.sub(b.mul(y, v[P.STRIDE_Y]), v[P.TOP])
            before = b.mul(image, v[P.HEIGHT])
            pixels = b.mul(unit, v[P.OUT_WIDTH])

            def pixel(x: Value) -> None:
                left = b.sub(b.mul(x, v[P.STRIDE_X]), v[P.LEFT])
                place = b.mul(b.add(pixels, x), v[P.CHANNELS])
                self._channels(before, top, left, place)

            c.loop(c.number(0), v[P.OUT_WIDTH], 1, pixel)

        c.loop(c.first, c.stop, 1, row)

    def _channels(self, before: Value, top: Value, left: Value, place: Value) -> None:
        """Long vectors while they fit, short ones, and a masked one."""
        c, b, channels = self.c, self.c.b, self.value[P.CHANNELS]
        long = 4 * c.lanes
        ends = [b.and_(channels, c.number(-step)) for step in (long, c.lanes)]

        def part(lanes: int, masked: bool) -> Callable[[Value], None]:
            def run(channel: Value) -> None:
                mask = c.mask(b.sub(channels, channel)) if masked else None
                self._window(lanes, mask, (before, top, left), b.add(place, channel), channel)

            return run

        c.loop(c.number(0), ends[0], long, part(long, False))
        c.loop(ends[0], ends[1], c.lanes, part(c.lanes, False))
        c.loop(ends[1], channels, c.lanes, part(c.lanes, True))

    def _window(
        self,
        lanes: int,
        mask: Value | None,
        corner: tuple[Value, Value, Value],
        place: Value,
        channel: Value,
    ) -> None:
        c, b, v = self.c, self.c.b, self.value
        before, top, left = corner
        kind = c.vector(self.element, lanes)
        start = c.splat(b.trunc(v[P.START], self.element), lanes)
        acc = c.variable(start)

        def row(tap: Value) -> None:
            y = b.add(top, b.mul(tap, v[P.DILATION_Y]))
            line = b.mul(b.add(before, y), v[P.WIDTH])

            def column(tap: Value) -> None:
                x = b.add(left, b.mul(tap, v[P.DILATION_X]))

                def take() -> None:
                    at = b.add(b.mul(b.add(line, x), v[P.CHANNELS]), channel)
                    b.store(self._joined(c.read(acc, kind), at, lanes, mask), acc)

                self._inside(x, v[P.WIDTH], take)

            self._inside(y, v[P.HEIGHT], lambda: c.loop(c.number(0), v[P.WINDOW_X], 1, column))

        c.loop(c.number(0), v[P.WINDOW_Y], 1, row)
        size = 4 if self.form.sums else SIZES[self.form.source]
        address = c.at(v[P.OUT], c.times(place, size))
        if mask is None:
            c.store(c.read(acc, kind), address)
        else:
            c.masked_store(c.read(acc, kind), address, mask)

    def _inside(self, index: Value, size: Value, then: Callable[[], None]) -> None:
        with self.c.b.if_then(self.c.b.icmp_unsigned("<", index, size)):
            then()

    def _joined(self, acc: Value, at: Value, lanes: int, mask: Value | None) -> Value:
        c, b = self.c, self.c.b
        address = c.at(self.value[P.X], c.times(at, SIZES[self.form.source]))
        kind: Any = c.vector(self.source, lanes)
        value = c.load(kind, address) if mask is None else c.masked_load(kind, address, mask)
        signed = self.form.source != "u8"
        if self.form.sums:
            widen = b.sext if signed else b.zext
            value = widen(value, c.vector(c.i32, lanes))
            zero = c.same(c.i32, 0 if signed else ZERO, lanes)
            return b.add(acc, b.sub(value, zero))
        compare = b.icmp_signed if signed else b.icmp_unsigned
        return b.select(compare(">", value, acc), value, acc)


def native_windows(
    x: torch.Tensor,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    size: Sequence[int],
    sums: bool,
) -> torch.Tensor | None:
    """Return maxima, or int32 sums of codes, over windows; ``None``: not compiled here.

    Pads neither add nor win. ``padding`` (top, left, ...).
    """
    shape = (*x.shape[:2], *size)
    is_map = x.is_contiguous(memory_format=torch.channels_last)
    if not engine.available() or not is_map or x.dtype not in (torch.uint8, torch.int16):
        return None
    if sums and window[0] * window[1] > 1 << 15:
        return None
    dtype = quant_dtype_of(x)
    result = buffers.empty_map(shape, torch.int32 if sums else x.dtype)
    if result.numel() == 0:
        return result
    parameters = [
        x.data_ptr(), result.data_ptr(), x.shape[2], x.shape[3], *size, x.shape[1], *window,
        *stride, *dilation, padding[0], padding[1], 0 if sums else dtype.qmin + offset(dtype),
    ]  # fmt: skip
    form = Form(kind_of(x.dtype), sums)
    kernel(form, engine.isa())(parameters, x.shape[0] * size[0])
    return result
