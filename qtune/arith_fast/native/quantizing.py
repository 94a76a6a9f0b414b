"""Codes of float32 numbers: ``floor(x / scale + 0.5)``, clamped (numerics.md section 1)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum

import torch

from qtune.arith_fast.native import engine
from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa, Native, compiled
from qtune.arith_fast.native.finish import SIZES, element, kind_of

CHUNK = 1 << 11
"""Elements of a plane in a unit of work."""


class P(IntEnum):
    """Parameters. ``COUNT`` elements in each of ``CHANNELS`` planes; ``NUMBERS``: scale and clamp.

    ``NAN`` points to an int64 that turns 1 where a NaN was met.
    """

    X = 0
    OUT = 1
    NUMBERS = 2
    NAN = 3
    COUNT = 4
    CHANNELS = 5
    CHUNKS = 6
    ZERO = 7


@dataclass(frozen=True, slots=True)
class Form:
    """``planes``: planes go in, channels side by side come out; else the order stays."""

    out: str
    planes: bool


@functools.cache
def kernel(form: Form, flags: Isa) -> Native:
    """Return the compiled kernel; a unit is a chunk of all planes of one image."""
    code = Code("quantizing", flags)
    _Writer(code, form).write()
    return compiled(code.done(), code.name, flags)


class _Writer:
    def __init__(self, c: Code, form: Form) -> None:
        self.c, self.form = c, form
        self.x, self.out, self.nan = (c.pointer(p) for p in (P.X, P.OUT, P.NAN))
        self.count, self.channels = c.parameter(P.COUNT), c.parameter(P.CHANNELS)
        numbers = c.pointer(P.NUMBERS)
        self.scale, self.low, self.high = (
            c.splat(c.load(c.f32, c.at(numbers, c.number(4 * i)))) for i in range(3)
        )
        self.zero = c.splat(c.b.trunc(c.parameter(P.ZERO), c.i32))
        self.size = SIZES[form.out]

    def write(self) -> None:
        c, b = self.c, self.c.b
        chunks = c.parameter(P.CHUNKS)

        def unit(index: Value) -> None:
            image = b.mul(b.udiv(index, chunks), self.channels)
            start = c.times(b.urem(index, chunks), CHUNK)
            stop = c.minimum(b.add(start, c.number(CHUNK)), self.count)
            c.loop(
                c.number(0), self.channels, 1, lambda plane: self._plane(image, plane, start, stop)
            )

        c.loop(c.first, c.stop, 1, unit)

    def _plane(self, image: Value, plane: Value, start: Value, stop: Value) -> None:
        c, b = self.c, self.c.b
        source = b.mul(b.add(image, plane), self.count)
        whole = b.add(start, b.and_(b.sub(stop, start), c.number(-c.lanes)))

        def vector(at: Value) -> None:
            codes = self._codes(b.add(source, at), None)
            if not self.form.planes:
                c.store(codes, c.at(self.out, c.times(b.add(source, at), self.size)))
                return
            pixel = b.mul(at, self.channels)
            place = b.add(b.add(b.mul(image, self.count), pixel), plane)
            for lane in range(c.lanes):
                one = b.extract_element(codes, c.ir.Constant(c.i32, lane))
                c.store(one, c.at(self.out, c.times(place, self.size)))
                place = b.add(place, self.channels)

        def last(at: Value) -> None:
            mask = c.mask(b.sub(stop, at))
            codes = self._codes(b.add(source, at), mask)
            if not self.form.planes:
                place = c.at(self.out, c.times(b.add(source, at), self.size))
                c.masked_store(codes, place, mask)
                return
            where = c.variable(codes)

            def one(lane: Value) -> None:
                found = c.load(element(c, self.form.out), c.at(where, c.times(lane, self.size)))
                pixel = b.mul(b.add(at, lane), self.channels)
                place = b.add(b.add(b.mul(image, self.count), pixel), plane)
                c.store(found, c.at(self.out, c.times(place, self.size)))

            c.loop(c.number(0), b.sub(stop, at), 1, one)

        c.loop(start, whole, c.lanes, vector)
        c.loop(whole, stop, c.lanes, last)

    def _codes(self, at: Value, mask: Value | None) -> Value:
        c, b = self.c, self.c.b
        kind, address = c.vector(c.f32), c.at(self.x, c.times(at, 4))
        x = c.load(kind, address) if mask is None else c.masked_load(kind, address, mask)
        self._note_nan(x)
        steps = b.fadd(b.fdiv(x, self.scale), c.same(c.f32, 0.5))
        steps = c.call(f"llvm.floor.v{c.lanes}f32", kind, steps)
        codes = b.fptosi(c.clamped(steps, self.low, self.high), c.vector(c.i32))
        return b.trunc(b.add(codes, self.zero), c.vector(element(c, self.form.out)))

    def _note_nan(self, x: Value) -> None:
        c, b = self.c, self.c.b
        found = b.bitcast(b.fcmp_unordered("uno", x, x), c.ir.IntType(c.lanes))
        is_nan = b.icmp_unsigned("!=", found, c.ir.Constant(found.type, 0))
        with b.if_then(is_nan, likely=False):
            c.store(c.number(1), self.nan)


def native_quantize(
    x: torch.Tensor, scale: float, zero: int, bounds: tuple[int, int], target: torch.Tensor
) -> bool | None:
    """Fill ``target`` (dense in the order of ``x``, or in channels_last) with held codes of ``x``.

    Return whether ``x`` holds a NaN; ``None``: not compiled here, or in another order.
    """
    if not engine.available() or x.dtype != torch.float32 or not x.numel():
        return None
    last = x.dim() == 4 and target.is_contiguous(memory_format=torch.channels_last)
    same = x.stride() == target.stride() and (x.is_contiguous() or last)
    planes = not same and last and x.is_contiguous()
    if not same and not planes:
        return None
    images, channels = (x.shape[0], x.shape[1]) if planes else (1, 1)
    count = x.numel() // (images * channels)
    numbers = torch.tensor([scale, *bounds], dtype=torch.float32)
    nan = torch.zeros(1, dtype=torch.int64)
    chunks = -(-count // CHUNK)
    parameters = [
        x.data_ptr(), target.data_ptr(), numbers.data_ptr(), nan.data_ptr(), count, channels,
        chunks, zero,
    ]  # fmt: skip
    kernel(Form(kind_of(target.dtype), planes), engine.isa())(parameters, images * chunks)
    return bool(nan.item())
