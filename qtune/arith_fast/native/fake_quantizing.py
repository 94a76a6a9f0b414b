"""Fake-quantize of float32 numbers in one pass, and the gradient it lets pass, one bit a number."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum

import torch

from qtune.arith_fast.native import engine
from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa, Native, compiled

CHUNK = 1 << 13
"""Elements of a row in a unit of work; whole bytes of the mask."""

LEAST = 1 << 12
"""Elements from which a call of a compiled kernel pays."""

NANOSECONDS = 0.5
"""About what one element takes one thread."""


class P(IntEnum):
    """Parameters. ``ROWS`` of ``COUNT`` elements; row ``r`` has scale ``r % SCALES``.

    Forward: ``X`` to ``OUT``, bits to ``MASK``. Backward: ``X`` is the gradient, ``MASK`` is read.
    ``BOUNDS``: smallest and largest code, float32. ``PITCH``: bytes of the mask for one row.
    """

    X = 0
    OUT = 1
    MASK = 2
    SCALE = 3
    BOUNDS = 4
    COUNT = 5
    CHUNKS = 6
    SCALES = 7
    PITCH = 8


@dataclass(frozen=True, slots=True)
class Form:
    """``backward``, or forward with or without ``mask``."""

    backward: bool
    mask: bool


@functools.cache
def kernel(form: Form, flags: Isa) -> Native:
    """Return the compiled kernel; a unit is a chunk of one row."""
    code = Code("fake_quantizing", flags)
    _Writer(code, form).write()
    return compiled(code.done(), code.name, flags)


class _Writer:
    def __init__(self, c: Code, form: Form) -> None:
        self.c, self.form = c, form
        self.x, self.out, self.mask = (c.pointer(p) for p in (P.X, P.OUT, P.MASK))
        self.scale, bounds = c.pointer(P.SCALE), c.pointer(P.BOUNDS)
        self.low, self.high = (
            c.splat(c.load(c.f32, c.at(bounds, c.number(4 * i)))) for i in range(2)
        )
        self.kind, self.bits = c.vector(c.f32), c.ir.IntType(c.lanes)

    def write(self) -> None:
        c, b = self.c, self.c.b
        count, chunks = c.parameter(P.COUNT), c.parameter(P.CHUNKS)
        scales, pitch = c.parameter(P.SCALES), c.parameter(P.PITCH)

        def unit(index: Value) -> None:
            row = b.udiv(index, chunks)
            start = c.times(b.urem(index, chunks), CHUNK)
            stop = c.minimum(b.add(start, c.number(CHUNK)), count)
            step = None
            if not self.form.backward:
                place = c.at(self.scale, c.times(b.urem(row, scales), 4))
                step = c.splat(c.load(c.f32, place))
            self._row(b.mul(row, count), b.mul(row, pitch), start, stop, step)

        c.loop(c.first, c.stop, 1, unit)

    def _row(self, base: Value, bits: Value, start: Value, stop: Value, step: Value | None) -> None:
        c, b = self.c, self.c.b
        whole = b.add(start, b.and_(b.sub(stop, start), c.number(-c.lanes)))

        def places(at: Value) -> tuple[Value, Value, Value]:
            offset = c.times(b.add(base, at), 4)
            byte = b.add(bits, b.lshr(at, c.number(3)))
            return c.at(self.x, offset), c.at(self.out, offset), c.at(self.mask, byte)

        def vector(at: Value) -> None:
            source, target, mask = places(at)
            c.store(self._computed(c.load(self.kind, source), mask, step), target)

        def last(at: Value) -> None:
            source, target, mask = places(at)
            some = c.mask(b.sub(stop, at))
            c.masked_store(
                self._computed(c.masked_load(self.kind, source, some), mask, step), target, some
            )

        c.loop(start, whole, c.lanes, vector)
        c.loop(whole, stop, c.lanes, last)

    def _computed(self, x: Value, mask: Value, step: Value | None) -> Value:
        c, b = self.c, self.c.b
        if step is None:
            passes = b.bitcast(c.load(self.bits, mask), c.vector(c.i1))
            return b.fmul(x, b.select(passes, c.same(c.f32, 1.0), c.same(c.f32, 0.0)))
        codes = b.fadd(b.fdiv(x, step), c.same(c.f32, 0.5))
        codes = c.call(f"llvm.floor.v{c.lanes}f32", self.kind, codes)
        below = b.fcmp_ordered("<", codes, self.low)
        above = b.fcmp_ordered(">", codes, self.high)
        if self.form.mask:
            out = b.or_(b.or_(below, above), b.fcmp_unordered("uno", codes, codes))
            inside = b.not_(out)
            c.store(b.bitcast(inside, self.bits), mask)
        codes = b.select(below, self.low, b.select(above, self.high, codes))
        return b.fmul(codes, step)


@dataclass(frozen=True, slots=True)
class Rows:
    """How a dense tensor lies in memory: ``rows`` of ``count`` elements, ``scales`` in turn."""

    rows: int
    count: int
    scales: int

    @property
    def pitch(self) -> int:
        """Bytes of the mask for one row: whole vectors of at most 16 lanes."""
        return 2 * -(-self.count // 16)

    def run(self, form: Form, addresses: list[int], bounds: int) -> None:
        """Run the kernel: addresses of X, OUT, MASK and SCALE."""
        chunks = -(-self.count // CHUNK)
        parameters = [*addresses, bounds, self.count, chunks, self.scales, self.pitch]
        cost = NANOSECONDS * self.rows * self.count
        kernel(form, engine.isa()).ready(parameters, self.rows * chunks, cost=cost)()


def usable(x: torch.Tensor) -> bool:
    """Whether a compiled kernel takes ``x``, apart from its order in memory."""
    fits = x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() >= LEAST
    return fits and engine.available()


def native_forward(
    x: torch.Tensor,
    scale: torch.Tensor,
    grid: tuple[int, int],
    rows: Rows,
    result: torch.Tensor,
    with_mask: bool,
) -> torch.Tensor | None:
    """Fill ``result``, dense in the order of ``x``; return the mask's bits [rows, pitch]."""
    bounds = torch.tensor(grid, dtype=torch.float32)
    shape = (rows.rows, rows.pitch) if with_mask else (0, 0)
    bits = torch.empty(shape, dtype=torch.uint8)
    scale = scale.contiguous()
    addresses = [x.data_ptr(), result.data_ptr(), bits.data_ptr(), scale.data_ptr()]
    rows.run(Form(backward=False, mask=with_mask), addresses, bounds.data_ptr())
    return bits if with_mask else None


def native_backward(
    gradient: torch.Tensor, bits: torch.Tensor, rows: Rows, result: torch.Tensor
) -> None:
    """Fill ``result`` with ``gradient`` times the mask's ones and zeros."""
    addresses = [gradient.data_ptr(), result.data_ptr(), bits.data_ptr(), 0]
    rows.run(Form(backward=True, mask=True), addresses, 0)
