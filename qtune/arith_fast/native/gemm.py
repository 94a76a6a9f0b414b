"""Convolutions and linear layers on held codes: sums, operand and requantize in one pass."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum

from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa, Native, compiled
from qtune.arith_fast.native.finish import (
    Sink,
    limits,
)
from qtune.arith_fast.native.products import (
    accumulate,
    spread_word,
    step_bytes,
)


class P(IntEnum):
    """Parameters of the kernel; sizes in bytes end in ``bytes``."""

    X = 0
    OFFSETS = 1
    PAD = 2
    WEIGHTS = 3
    OUT = 4
    BIAS = 5
    FACTOR = 6
    ADDEND = 7
    LIMITS = 8
    OPERAND = 9
    OPERAND_FACTOR = 10
    OPERAND_ADDEND = 11
    TAPS = 12
    STEPS = 13
    ROWS = 14
    IMAGE_BYTES = 15
    ROW_BYTES = 16
    CHANNELS = 17
    PANELS = 18
    PANEL_ROWS = 19
    BLOCKS = 20
    """Number of blocks of 1, 2, 3, ... vectors: the last parameters."""


@dataclass(frozen=True, slots=True)
class Form:
    """What differs between compiled kernels.

    ``table``: rows are found through a table of offsets, one per tap (-1: the pad); else they lie
    one behind the other. ``operand``: the kind of a fused addend. ``near``: int32 holds
    the results before their clamp.
    """

    source: str
    out: str
    operand: str | None
    table: bool
    near: bool


def widest(flags: Isa) -> int:
    """Most vectors of output channels in a block."""
    return 4 if flags.registers == 32 else 2


def tile_rows(width: int, flags: Isa) -> int:
    """Rows that a block of ``width`` vectors works on at a time: all sums stay in registers."""
    if flags.registers == 32:
        return {1: 12, 2: 12, 3: 8, 4: 6}[width]
    if flags.vnni:
        return {1: 8, 2: 6}[width]
    return {1: 6, 2: 4}[width]


@functools.cache
def kernel(form: Form, flags: Isa) -> Native:
    """Return the compiled kernel; a unit of work is a panel of rows of one image."""
    code = Code("gemm", flags)
    _Writer(code, form).write()
    return compiled(code.done(), code.name, flags)


class _Writer:
    """Writes the loops: panels, blocks of channels, tiles of rows, taps, steps."""

    def __init__(self, c: Code, form: Form) -> None:
        self.c, self.form = c, form
        self.value = {p: c.pointer(p) if p <= P.OPERAND_ADDEND else c.parameter(p) for p in P}
        v = self.value
        self.sink = Sink(
            c, form.out, form.operand, v[P.OUT], v[P.OPERAND], limits(c, P.LIMITS, form.near)
        )

    def write(self) -> None:
        c = self.c
        c.loop(c.first, c.stop, 1, self._panel)

    def _panel(self, unit: Value) -> None:
        c, b, v = self.c, self.c.b, self.value
        image = b.udiv(unit, v[P.PANELS])
        first = b.mul(b.urem(unit, v[P.PANELS]), v[P.PANEL_ROWS])
        stop = c.minimum(b.add(first, v[P.PANEL_ROWS]), v[P.ROWS])
        base = c.at(v[P.X], b.mul(image, v[P.IMAGE_BYTES]))
        rows_before = b.mul(image, v[P.ROWS])
        done = c.variable(c.number(0))
        for width in range(widest(c.isa), 0, -1):
            count = c.parameter(P.BLOCKS + width - 1)

            def block(_: Value, width: int = width) -> None:
                vectors = c.read(done, c.i64)
                self._block(width, vectors, base, rows_before, first, stop)
                b.store(b.add(vectors, c.number(width)), done)

            c.loop(c.number(0), count, 1, block)

    def _block(
        self, width: int, vectors: Value, base: Value, before: Value, first: Value, stop: Value
    ) -> None:
        c, b, v = self.c, self.c.b, self.value
        per_step = step_bytes(self.form.source, c.isa)
        span = b.mul(v[P.TAPS], v[P.STEPS])
        weights = c.at(v[P.WEIGHTS], c.times(b.mul(vectors, span), per_step))
        channel = c.times(vectors, c.lanes)
        tile = _Tile(self, width, channel, weights)

        def rows(row: Value) -> None:
            tile.run(base, before, row, stop)

        c.loop(first, stop, tile_rows(width, c.isa), rows)


class _Tile:
    """A few rows by a few vectors of channels: sums in registers, then codes."""

    def __init__(self, writer: _Writer, width: int, channel: Value, weights: Value) -> None:
        self.w, self.c, self.form, self.v = writer, writer.c, writer.form, writer.value
        self.width, self.channel, self.weights = width, channel, weights
        self.rows = tile_rows(width, self.c.isa)
        self.step = step_bytes(self.form.source, self.c.isa)

    def run(self, base: Value, before: Value, row: Value, stop: Value) -> None:
        c, b = self.c, self.c.b
        last = b.sub(stop, c.number(1))
        rows = [c.minimum(b.add(row, c.number(i)), last) for i in range(self.rows)]
        sums = self._sums(base, rows)
        places = [b.mul(b.add(before, r), self.v[P.CHANNELS]) for r in rows]
        if c.lanes == 16:  # a mask costs nothing there
            self._finish(sums, places, True)
            return
        end = b.add(self.channel, c.number(self.width * c.lanes))
        c.either(
            b.icmp_signed("<=", end, self.v[P.CHANNELS]),
            lambda: self._finish(sums, places, False),
            lambda: self._finish(sums, places, True),
        )

    def _sums(self, base: Value, rows: list[Value]) -> list[list[Value]]:
        c, b, v = self.c, self.c.b, self.v
        kind = c.vector(c.i32)
        start = [
            c.load(kind, c.at(v[P.BIAS], c.times(b.add(self.channel, c.number(j * c.lanes)), 4)))
            for j in range(self.width)
        ]
        places = [[c.variable(value) for value in start] for _ in rows]
        if not self.form.table:
            sources = [c.at(base, b.mul(r, v[P.ROW_BYTES])) for r in rows]
            self._steps(sources, self.weights, places)
        else:
            c.loop(c.number(0), v[P.TAPS], 1, lambda tap: self._tap(tap, base, rows, places))
        return [[c.read(p, kind) for p in line] for line in places]

    def _tap(self, tap: Value, base: Value, rows: list[Value], places: list[list[Value]]) -> None:
        c, b, v = self.c, self.c.b, self.v
        weights = c.at(self.weights, c.times(b.mul(tap, v[P.STEPS]), self.step * self.width))
        sources = []
        for r in rows:
            entry = b.add(b.mul(r, v[P.TAPS]), tap)
            offset = c.load(c.i32, c.at(v[P.OFFSETS], c.times(entry, 4)))
            inside = b.icmp_signed(">=", offset, c.ir.Constant(c.i32, 0))
            place = c.at(base, b.sext(offset, c.i64))
            sources.append(b.select(inside, place, v[P.PAD]))
        self._steps(sources, weights, places)

    def _steps(self, sources: list[Value], weights: Value, places: list[list[Value]]) -> None:
        c = self.c
        kind = c.vector(c.i32)

        def step(k: Value) -> None:
            at = c.at(weights, c.times(k, self.step * self.width))
            for source, line in zip(sources, places, strict=True):
                word = c.load(c.i32, c.at(source, c.times(k, 4)))
                x = spread_word(c, word, self.form.source)
                for j, place in enumerate(line):
                    w = c.at(at, c.number(j * self.step))
                    acc = accumulate(c, c.read(place, kind), x, w, self.form.source)
                    c.b.store(acc, place)

        c.loop(c.number(0), self.v[P.STEPS], 1, step)

    def _finish(self, sums: list[list[Value]], places: list[Value], partial: bool) -> None:
        c, b, v = self.c, self.c.b, self.v
        arrays = [v[p] for p in (P.FACTOR, P.ADDEND, P.OPERAND_FACTOR, P.OPERAND_ADDEND)]
        for j in range(self.width):
            channel = b.add(self.channel, c.number(j * c.lanes))
            mask = c.mask(b.sub(v[P.CHANNELS], channel)) if partial else None
            scales = self.w.sink.scales(arrays, channel)
            for line, place in zip(sums, places, strict=True):
                self.w.sink.write(line[j], b.add(place, channel), mask, scales)
