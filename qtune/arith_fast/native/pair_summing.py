"""Sums over the values of two float32 tensors in one pass, in float64."""

from __future__ import annotations

import functools
import math
from enum import IntEnum

import torch

from qtune.arith_fast.native import engine
from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa, Native, compiled
from qtune.arith_fast.native.fake_quantizing import usable

NANOSECONDS = 0.4
"""About what one pair of values takes one thread."""

SUMS = ("a", "b", "aa", "bb", "ab", "ee", "abs_e")
"""Of the values, their products, and the difference ``e = a - b``."""

ENDS = ("top_e", "low_a", "high_a", "low_b", "high_b")
"""Largest ``abs(e)``, smallest and largest values; they do not see NaN, which the sums show."""

FIELDS = (*SUMS, *ENDS)
"""Columns of the result."""


class P(IntEnum):
    """Parameters: ``TOTAL`` values of ``A`` and ``B`` in rows of ``COUNT``; rows of ``OUT``."""

    A = 0
    B = 1
    OUT = 2
    COUNT = 3
    TOTAL = 4


@functools.cache
def kernel(flags: Isa) -> Native:
    """Return the compiled kernel; a unit is a row."""
    code = Code("pair_summing", flags)
    _Writer(code).write()
    return compiled(code.done(), code.name, flags)


class _Writer:
    def __init__(self, c: Code) -> None:
        self.c = c
        self.kind, self.wide = c.vector(c.f32), c.vector(c.f64)
        self.values = {"a": c.pointer(P.A), "b": c.pointer(P.B)}
        self.out = c.pointer(P.OUT)
        self.held: dict[str, Value] = {}

    def write(self) -> None:
        c, b = self.c, self.c.b
        count, total = c.parameter(P.COUNT), c.parameter(P.TOTAL)

        def unit(index: Value) -> None:
            start = b.mul(index, count)
            stop = c.minimum(b.add(start, count), total)
            self._begin()
            whole = b.add(start, b.and_(b.sub(stop, start), c.number(-c.lanes)))
            c.loop(start, whole, c.lanes, lambda at: self._pairs(at, None))
            c.loop(whole, stop, c.lanes, lambda at: self._pairs(at, c.mask(b.sub(stop, at))))
            self._end(c.at(self.out, c.times(index, 8 * len(FIELDS))))

        c.loop(c.first, c.stop, 1, unit)

    def _begin(self) -> None:
        c = self.c
        for name in FIELDS:
            self.held[name] = c.variable(self._neutral(name))

    def _neutral(self, name: str) -> Value:
        """What changes nothing: lanes beyond the end of a row have it."""
        is_end = name in ENDS[1:]
        worst = math.inf if name.startswith("low") else -math.inf
        return self.c.same(self.c.f32, worst) if is_end else self.c.same(self.c.f64, 0.0)

    def _pairs(self, at: Value, mask: Value | None) -> None:
        c, b = self.c, self.c.b
        wide = {}
        for side, base in self.values.items():
            address = c.at(base, c.times(at, 4))
            x = (
                c.load(self.kind, address)
                if mask is None
                else c.masked_load(self.kind, address, mask)
            )
            wide[side] = b.fpext(x, self.wide)
            self._add(side, wide[side])
            for end in (f"low_{side}", f"high_{side}"):
                self._reach(end, x if mask is None else b.select(mask, x, self._neutral(end)))
        wide["e"] = b.fsub(wide["a"], wide["b"])
        for name in ("aa", "bb", "ab", "ee"):
            left, right = (wide[side] for side in name)
            b.store(c.multiply_add(left, right, self._read(name)), self.held[name])
        size = c.call(f"llvm.fabs.v{c.lanes}f64", self.wide, wide["e"])
        self._add("abs_e", size)
        self._reach("top_e", size)

    def _read(self, name: str) -> Value:
        return self.c.read(self.held[name], self.kind if name in ENDS[1:] else self.wide)

    def _add(self, name: str, x: Value) -> None:
        self.c.b.store(self.c.b.fadd(self._read(name), x), self.held[name])

    def _reach(self, name: str, x: Value) -> None:
        self.c.b.store(self._further(name, x, self._read(name)), self.held[name])

    def _further(self, name: str, x: Value, old: Value) -> Value:
        order = "<" if name.startswith("low") else ">"
        return self.c.b.select(self.c.b.fcmp_ordered(order, x, old), x, old)

    def _end(self, place: Value) -> None:
        """Join the lanes, halves by halves, and write the row."""
        c, b = self.c, self.c.b
        for column, name in enumerate(FIELDS):
            value = self._read(name)
            while value.type.count > 1:
                left, right = c.halves(value)
                value = b.fadd(left, right) if name in SUMS else self._further(name, left, right)
            one = b.extract_element(value, c.ir.Constant(c.i32, 0))
            one = b.fpext(one, c.f64) if name in ENDS[1:] else one
            c.store(one, c.at(place, c.number(8 * column)))


def native_pair_sums(a: torch.Tensor, b: torch.Tensor, count: int) -> torch.Tensor | None:
    """Return the :data:`FIELDS` of each row of ``count`` values (the last may be shorter).

    ``a`` and ``b``: float32 of one shape, contiguous, read as one row after the other. float64
    [rows, 12]; ``None``: not compiled here, small, or of another type or order.
    """
    if not (usable(a) and usable(b) and a.is_contiguous() and b.is_contiguous()):
        return None
    rows = -(-a.numel() // count)
    found = torch.empty(rows, len(FIELDS), dtype=torch.float64)
    addresses = [a.data_ptr(), b.data_ptr(), found.data_ptr()]
    cost = NANOSECONDS * a.numel()
    kernel(engine.isa()).ready([*addresses, count, a.numel()], rows, cost=cost)()
    return found
