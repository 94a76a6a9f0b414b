"""Weighted sums and products of codes, requantized in the same pass; codes of real numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from qtune.arith_fast.native import engine
from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa, Native, compiled
from qtune.arith_fast.native.finish import (
    SIZES,
    Scale,
    element,
    kind_of,
    limits,
    narrowed,
    scale_at,
    scaled,
    to_doubles,
)
from qtune.arith_fast.native.products import pair_products
from qtune.arith_fast.steps import DoubleStep

CHUNK = 1 << 13
"""Elements of a unit of work."""

SOURCES = (torch.uint8, torch.int16, torch.int32, torch.float32)
"""What operands may hold; float32 holds exact integers."""


class P(IntEnum):
    """Parameters of the kernel; the operands' addresses follow."""

    OUT = 0
    FACTOR = 1
    ADDEND = 2
    LIMITS = 3
    WEIGHTS = 4
    COUNT = 5
    CHANNELS = 6
    M = 7
    N = 8
    BIAS = 9
    LOW = 10
    HIGH = 11
    PAIR = 12
    """Two 16-bit weights in one word."""
    OPERANDS = 13


@dataclass(frozen=True, slots=True)
class Form:
    """Kinds of operands and result; ``product``: of two operands less their zeros, else a sum.

    ``rows``: one scale per channel, the last axis; else one for all elements. ``short``: int32
    holds everything, operands are bytes; else doubles do. ``near``: int32 holds the results
    before their clamp.
    """

    kinds: tuple[str, ...]
    out: str
    product: bool
    rows: bool
    near: bool
    short: bool


@functools.cache
def kernel(form: Form, flags: Isa) -> Native:
    """Return the compiled kernel; a unit is a row, or ``CHUNK`` elements."""
    code = Code("elementwise", flags)
    _Writer(code, form).write()
    return compiled(code.done(), code.name, flags)


class _Writer:
    def __init__(self, c: Code, form: Form) -> None:
        self.c, self.form = c, form
        self.operands = [c.pointer(P.OPERANDS + i) for i in range(len(form.kinds))]
        self.out, self.bounds = c.pointer(P.OUT), limits(c, P.LIMITS, form.near)
        self.short = _Short(c, form)
        weights = c.pointer(P.WEIGHTS)
        self.weights = [
            c.splat(c.load(c.f64, c.at(weights, c.number(8 * i))), c.lanes // 2)
            for i in range(len(form.kinds))
        ]

    def write(self) -> None:
        c, b = self.c, self.c.b
        factor, addend = c.pointer(P.FACTOR), c.pointer(P.ADDEND)
        if self.form.rows:
            channels = c.parameter(P.CHANNELS)

            def row(unit: Value) -> None:
                start = b.mul(unit, channels)
                self._run(start, channels, lambda at: scale_at(c, factor, addend, at))

            c.loop(c.first, c.stop, 1, row)
            return
        one = Scale(*([c.splat(c.load(c.f64, a), c.lanes // 2)] * 2 for a in (factor, addend)))
        count = c.parameter(P.COUNT)

        def chunk(unit: Value) -> None:
            start = c.times(unit, CHUNK)
            left = c.minimum(b.sub(count, start), c.number(CHUNK))
            self._run(start, left, lambda at: one)

        c.loop(c.first, c.stop, 1, chunk)

    def _run(self, start: Value, count: Value, find: Callable[[Value], Scale]) -> None:
        """All elements of a unit; the last vector may be masked."""
        c, b = self.c, self.c.b
        whole = b.and_(count, c.number(-c.lanes))
        c.loop(c.number(0), whole, c.lanes, lambda i: self._vector(b.add(start, i), None, find(i)))
        c.loop(
            whole,
            count,
            c.lanes,
            lambda i: self._vector(b.add(start, i), c.mask(b.sub(count, i)), find(i)),
        )

    def _vector(self, at: Value, mask: Value | None, scale: Scale) -> None:
        c = self.c
        if self.form.short:
            result = self.short.codes([self._loaded(i, at, mask) for i in range(2)])
        else:
            result = self._codes(
                [self._load(i, at, mask) for i in range(len(self.form.kinds))], scale
            )
        address = c.at(self.out, c.times(at, SIZES[self.form.out]))
        if mask is None:
            c.store(result, address)
        else:
            c.masked_store(result, address, mask)

    def _codes(self, values: list[list[Value]], scale: Scale) -> Value:
        c, b = self.c, self.c.b
        if self.form.product:
            parts = [
                [b.fsub(half, weight) for half in value]
                for value, weight in zip(values, self.weights, strict=True)
            ]
            sums = [b.fmul(x, y) for x, y in zip(*parts, strict=True)]
        else:
            sums = [b.fmul(half, self.weights[0]) for half in values[0]]
            for value, weight in zip(values[1:], self.weights[1:], strict=True):
                sums = [
                    c.multiply_add(half, weight, s) for half, s in zip(value, sums, strict=True)
                ]
        return narrowed(c, scaled(c, sums, scale), self.bounds, self.form.out)

    def _load(self, index: int, at: Value, mask: Value | None) -> list[Value]:
        return to_doubles(self.c, self._loaded(index, at, mask), self.form.kinds[index])

    def _loaded(self, index: int, at: Value, mask: Value | None) -> Value:
        c, source = self.c, self.form.kinds[index]
        kind = c.vector(element(c, source))
        address = c.at(self.operands[index], c.times(at, SIZES[source]))
        return c.load(kind, address) if mask is None else c.masked_load(kind, address, mask)


class _Short:
    """``(value * m + bias) >> n`` of two bytes' weighted sum or product, all in int32."""

    def __init__(self, c: Code, form: Form) -> None:
        self.c, self.form = c, form
        self.m, self.n, self.bias, self.low, self.high, self.pair = (
            c.splat(c.b.trunc(c.parameter(p), c.i32))
            for p in (P.M, P.N, P.BIAS, P.LOW, P.HIGH, P.PAIR)
        )

    def codes(self, held: list[Value]) -> Value:
        c, b = self.c, self.c.b
        x, y = (b.zext(value, c.vector(c.i32)) for value in held)
        if self.form.product:
            zero = c.same(c.i32, 128)
            # The product of two codes has 15 bits: one product of words scales it.
            value = b.mul(b.sub(x, zero), b.sub(y, zero))
            value = pair_products(c, b.and_(value, c.same(c.i32, 0xFFFF)), self.m)
        else:
            value = pair_products(c, b.or_(x, b.shl(y, c.same(c.i32, 16))), self.pair)
        value = b.ashr(b.add(value, self.bias), self.n)
        value = c.minimum(c.maximum(value, self.low), self.high)
        return b.trunc(value, c.vector(element(c, self.form.out)))


class NativeStep:
    """A prepared ``DoubleStep`` on flat operands in one memory order, or on rows of channels."""

    def __init__(self, step: DoubleStep, out: torch.dtype) -> None:
        self._flags, self._out = engine.isa(), kind_of(out)
        spare = torch.zeros(self._flags.lanes, dtype=torch.float64)
        self._factor, self._addend = (torch.cat([v, spare]) for v in (step.factor, step.addend))
        top = step.high if step.low < 0 else step.high + 0.5
        self._limits = torch.tensor([step.low, top], dtype=torch.float64)
        self._channels, self._step = step.factor.numel(), step
        self._offset = step.offset

    def _short(self, weights: Sequence[int], product: bool) -> list[int] | None:
        """Parameters M .. PAIR where int32 is enough for two bytes, else ``None``."""
        m, n, bias = (int(v[0]) for v in self._step.integers)
        if self._channels > 1 or len(weights) != 2 or not 1 <= n <= 23:
            return None
        start = bias * m + (1 << (n - 1)) + (self._offset << n)
        largest = 1 << 14 if product else 255 * sum(abs(w) for w in weights)
        if largest * abs(m) + abs(start) >= 1 << 31:
            return None
        if max(abs(m), *map(abs, weights)) >= 1 << 15 or not (product or m == 1):
            return None
        pair = (int(weights[0]) & 0xFFFF) | (int(weights[1]) & 0xFFFF) << 16
        return [m, n, start, self._step.low, self._step.high, pair]

    def __call__(
        self,
        operands: Sequence[torch.Tensor],
        weights: Sequence[int],
        target: torch.Tensor,
        product: bool = False,
    ) -> None:
        """Fill ``target`` with the codes of ``sum(weight * operand)``.

        ``product``: of ``(a - weight a) * (b - weight b)``. All are dense in one order; with
        scales per channel the channels lie innermost.
        """
        kinds = tuple(kind_of(q.dtype) for q in operands)
        rows = self._channels > 1
        bytes_in = kinds == ("u8", "u8") and self._flags.x86
        short = self._short(weights, product) if bytes_in else None
        form = Form(kinds, self._out, product, rows, self._step.fits_int32, short is not None)
        count = target.numel()
        numbers = torch.tensor(weights, dtype=torch.float64)
        parameters = [
            target.data_ptr(), self._factor.data_ptr(), self._addend.data_ptr(),
            self._limits.data_ptr(), numbers.data_ptr(), count, self._channels,
            *(short or [0] * 6), *(q.data_ptr() for q in operands),
        ]  # fmt: skip
        units = count // self._channels if rows else -(-count // CHUNK)
        kernel(form, self._flags)(parameters, units)


def native_step(step: object, out: torch.dtype) -> NativeStep | None:
    """Return the compiled form of a requantize step, or ``None``: int64, or no compiler."""
    if not engine.available() or not isinstance(step, DoubleStep):
        return None
    return NativeStep(step, out)
