"""The end of every kernel: int32 sums or doubles to held codes (numerics.md sections 2.3, 2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from qtune.arith_fast.native.emitter import Code, Value

SIZES = {"u8": 1, "i16": 2, "i32": 4, "f32": 4}
"""Bytes of an element."""

_NAMES = {torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.float32: "f32"}


def kind_of(dtype: torch.dtype) -> str:
    """The name of an element type in kernel forms."""
    return _NAMES[dtype]


def element(c: Code, kind: str) -> Any:
    """LLVM's type of an element."""
    return {"u8": c.i8, "i16": c.i16, "i32": c.i32, "f32": c.f32}[kind]


def to_doubles(c: Code, value: Value, kind: str) -> list[Value]:
    """A vector of integers (float32 holds them too) as two vectors of doubles."""
    convert = {"u8": c.b.uitofp, "f32": c.b.fpext}.get(kind, c.b.sitofp)
    halves = c.halves(value)
    return [convert(half, c.vector(c.f64, half.type.count)) for half in halves]


@dataclass(frozen=True, slots=True)
class Scale:
    """Pairs of vectors of doubles: ``y = x * factor + addend``."""

    factor: list[Value]
    addend: list[Value]


def scale_at(c: Code, factor: Value, addend: Value, position: Value) -> Scale:
    """The scales of the channels from ``position`` on, from two arrays of doubles."""
    half = c.vector(c.f64, c.lanes // 2)
    places = [c.times(position, 8), c.times(c.b.add(position, c.number(c.lanes // 2)), 8)]
    return Scale(
        [c.load(half, c.at(factor, p)) for p in places],
        [c.load(half, c.at(addend, p)) for p in places],
    )


def scaled(c: Code, values: list[Value], scale: Scale) -> list[Value]:
    """``values * factor + addend``."""
    return [
        c.multiply_add(v, f, a) for v, f, a in zip(values, scale.factor, scale.addend, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The clamp, as vectors of int32 where all results fit (``near``), else of doubles."""

    low: Value
    high: Value
    near: bool


def limits(c: Code, index: int, near: bool) -> Bounds:
    """The clamp from the parameter that points to two doubles."""
    base = c.pointer(index)
    values = [c.load(c.f64, c.at(base, c.number(8 * i))) for i in range(2)]
    if near:
        low, high = (c.splat(c.b.fptosi(value, c.i32)) for value in values)
    else:
        low, high = (c.splat(value, c.lanes // 2) for value in values)
    return Bounds(low, high, near)


def narrowed(c: Code, values: list[Value], bounds: Bounds, kind: str) -> Value:
    """Doubles (0.5 added) to codes: floor, clamp, narrow.

    Unsigned codes are clamped at 0 or more, which makes truncation floor.
    """
    parts = []
    for value in values:
        if kind != "u8":
            value = c.floor(value)
        if not bounds.near:
            value = c.clamped(value, bounds.low, bounds.high)
        parts.append(c.b.fptosi(value, c.vector(c.i32, value.type.count)))
    codes = c.joined(parts)
    if bounds.near:
        codes = c.maximum(codes, bounds.low)
        codes = c.minimum(codes, bounds.high)
    return c.b.trunc(codes, c.vector(element(c, kind)))


class Sink:
    """Writes vectors of int32 sums as codes: operand, requantize, clamp, store."""

    def __init__(
        self,
        c: Code,
        out: str,
        operand: str | None,
        address: Value,
        operand_address: Value,
        bounds: Bounds,
    ) -> None:
        self.c, self.out, self.operand = c, out, operand
        self._address, self._operand_address, self._bounds = address, operand_address, bounds

    def scales(self, arrays: list[Value], channel: Value) -> tuple[Scale | None, Scale | None]:
        """Scale and operand's scale of the channels from ``channel`` on.

        ``arrays``: the addresses of factor, addend, the operand's factor and addend.
        """
        own = None if self.out == "i32" else scale_at(self.c, arrays[0], arrays[1], channel)
        if self.operand is None:
            return own, None
        return own, scale_at(self.c, arrays[2], arrays[3], channel)

    def write(
        self, acc: Value, at: Value, mask: Value | None, scales: tuple[Scale | None, Scale | None]
    ) -> None:
        """Store the codes of ``acc`` at element ``at``, only the lanes of ``mask`` if given."""
        c, (own, other), result = self.c, scales, acc
        if own is not None:
            values = to_doubles(c, acc, "i32")
            if other is not None:
                extra = self._rescaled(at, mask, other)
                values = [c.b.fadd(v, e) for v, e in zip(values, extra, strict=True)]
            result = narrowed(c, scaled(c, values, own), self._bounds, self.out)
        address = c.at(self._address, c.times(at, SIZES[self.out]))
        if mask is None:
            c.store(result, address)
        else:
            c.masked_store(result, address, mask)

    def _rescaled(self, at: Value, mask: Value | None, scale: Scale) -> list[Value]:
        """The operand on the sums' grid: floor; it needs no clamp."""
        c, source = self.c, self.operand or "u8"
        kind = c.vector(element(c, source))
        address = c.at(self._operand_address, c.times(at, SIZES[source]))
        held = c.load(kind, address) if mask is None else c.masked_load(kind, address, mask)
        return [c.floor(value) for value in scaled(c, to_doubles(c, held, source), scale)]
