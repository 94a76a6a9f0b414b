"""Tables of 256 entries of one byte: four registers hold one, and 64 codes are found at a time."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum

import torch

from qtune.arith_fast.blocks import block_elements, spans
from qtune.arith_fast.native import engine
from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa, Native, compiled
from qtune.arith_fast.native.finish import SIZES, element, kind_of

CHUNK = 1 << 14
"""Elements of a unit of work."""

_UNROLLED = 8


class P(IntEnum):
    """Parameters of the kernel; ``ZERO`` is added to a code before it is looked up."""

    X = 0
    OUT = 1
    TABLE = 2
    COUNT = 3
    ZERO = 4


@dataclass(frozen=True, slots=True)
class Form:
    """Kinds of codes and entries."""

    source: str
    out: str


@functools.cache
def kernel(form: Form, flags: Isa) -> Native:
    """Return the compiled kernel; a unit is ``CHUNK`` elements."""
    code = Code("lookup", flags)
    _Writer(code, form).write()
    return compiled(code.done(), code.name, flags)


class _Writer:
    def __init__(self, c: Code, form: Form) -> None:
        self.c, self.form = c, form
        self.x, self.out, self.table = (c.pointer(p) for p in (P.X, P.OUT, P.TABLE))
        self.zero = c.parameter(P.ZERO)
        self.wide = form == Form("u8", "u8") and c.isa.shuffles

    def write(self) -> None:
        c, b = self.c, self.c.b
        count = c.parameter(P.COUNT)
        quarters = self._quarters() if self.wide else []

        def chunk(unit: Value) -> None:
            start = c.times(unit, CHUNK)
            stop = c.minimum(b.add(start, c.number(CHUNK)), count)
            step = 64 if self.wide else _UNROLLED
            whole = b.add(start, b.and_(b.sub(stop, start), c.number(-step)))
            if self.wide:
                c.loop(start, whole, step, lambda i: self._vector(quarters, i))
            else:
                c.loop(start, whole, step, self._several)
            c.loop(whole, stop, 1, self._one)

        c.loop(c.first, c.stop, 1, chunk)

    def _quarters(self) -> list[Value]:
        c = self.c
        kind = c.vector(c.i8, 64)
        return [c.load(kind, c.at(self.table, c.number(64 * i))) for i in range(4)]

    def _vector(self, quarters: list[Value], at: Value) -> None:
        c, b = self.c, self.c.b
        kind = c.vector(c.i8, 64)
        codes = c.load(kind, c.at(self.x, at))
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        low, high = (c.call(name, kind, quarters[i], codes, quarters[i + 1]) for i in (0, 2))
        is_high = b.icmp_signed("<", codes, c.same(c.i8, 0, 64))
        c.store(b.select(is_high, high, low), c.at(self.out, at))

    def _several(self, at: Value) -> None:
        for i in range(_UNROLLED):
            self._one(self.c.b.add(at, self.c.number(i)))

    def _one(self, at: Value) -> None:
        c, b = self.c, self.c.b
        code = c.load(
            element(c, self.form.source), c.at(self.x, c.times(at, SIZES[self.form.source]))
        )
        widen = b.zext if self.form.source == "u8" else b.sext
        entry = b.add(widen(code, c.i64), self.zero)
        size = SIZES[self.form.out]
        value = c.load(element(c, self.form.out), c.at(self.table, c.times(entry, size)))
        c.store(value, c.at(self.out, c.times(at, size)))


def gather(entries: torch.Tensor, x: torch.Tensor, target: torch.Tensor, shift: int) -> None:
    """Fill flat ``target`` with ``entries[x + shift]`` of flat held codes."""
    if x.dtype in (torch.uint8, torch.int16) and engine.available():
        parameters = [x.data_ptr(), target.data_ptr(), entries.data_ptr(), x.numel(), shift]
        form = Form(kind_of(x.dtype), kind_of(entries.dtype))
        kernel(form, engine.isa())(parameters, -(-x.numel() // CHUNK))
        return
    for start, stop in spans(len(x), block_elements()):
        index = x[start:stop].to(torch.int32)
        if shift:
            index.add_(shift)
        # several times faster than indexing
        torch.index_select(entries, 0, index, out=target[start:stop])
