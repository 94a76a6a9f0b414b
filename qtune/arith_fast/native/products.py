"""Sums of four byte products (or two 16-bit ones) per 32-bit lane, and how weights lie for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.arith.rounding import Int64Array
from qtune.arith_fast.native.emitter import Code, Value
from qtune.arith_fast.native.engine import Isa


def steps_per_word(source: str) -> int:
    """Elements of the input that four bytes hold."""
    return 4 if source == "u8" else 2


def step_bytes(source: str, flags: Isa) -> int:
    """Bytes of one vector of weights for one step."""
    return flags.lanes * (8 if source == "u8" and not flags.vnni else 4)


def spread_word(c: Code, word: Value, source: str) -> list[Value]:
    """Four bytes of the input in every lane, as :func:`accumulate` takes them."""
    x = c.splat(word)
    if source != "u8" or c.isa.vnni:
        return [x]
    low = c.same(c.i32, 0x00FF00FF)
    return [c.b.and_(x, low), c.b.and_(c.b.lshr(x, c.same(c.i32, 8)), low)]


def accumulate(c: Code, acc: Value, x: list[Value], weights: Value, source: str) -> Value:
    """``acc`` plus the products of ``x`` with the weights at an address."""
    kind = c.vector(c.i32)
    if c.isa.vnni:
        name = "vpdpbusd" if source == "u8" else "vpdpwssd"
        return dot(c, name, acc, x[0], c.load(kind, weights))
    for index, part in enumerate(x):
        w = c.load(kind, c.at(weights, c.number(index * c.lanes * 4)))
        acc = c.b.add(acc, pair_products(c, part, w))
    return acc


def dot(c: Code, name: str, acc: Value, x: Value, w: Value) -> Value:
    """``acc`` plus sums of four byte products (vpdpbusd) or two of words (vpdpwssd)."""
    return c.call(f"llvm.x86.avx512.{name}.{32 * c.lanes}", acc.type, acc, x, w)


def pair_products(c: Code, x: Value, w: Value) -> Value:
    """Sums of two 16-bit products in each 32-bit lane."""
    narrow = c.ir.VectorType(c.i16, 2 * c.lanes)
    name = "llvm.x86.avx512.pmaddw.d.512" if c.lanes == 16 else "llvm.x86.avx2.pmadd.wd"
    return c.call(name, c.vector(c.i32), c.b.bitcast(x, narrow), c.b.bitcast(w, narrow))


def packed(w: Int64Array, source: str, flags: Isa, widths: list[int]) -> np.ndarray[Any, Any]:
    """Return weights [O, taps, K] as the kernels read them, a flat array.

    Output channels go in blocks of ``widths`` vectors; inside a block the order is tap, step,
    vector, lane, element. K is filled up with zeros to whole steps, O to whole vectors.
    """
    word, lanes = steps_per_word(source), flags.lanes
    outputs, taps, inputs = w.shape
    steps = -(-inputs // word)
    full = np.zeros((sum(widths) * lanes, taps, steps * word), dtype=np.int64)
    full[:outputs, :, :inputs] = w
    parts = full.reshape(-1, lanes, taps, steps, word)
    if source == "u8" and not flags.vnni:
        # even bytes, then odd ones, as words
        parts = parts.reshape(*parts.shape[:4], 2, 2).swapaxes(4, 5)
        parts = np.moveaxis(parts, 4, 1)  # vector, parity, lane, tap, step, pair
        parts = parts.transpose(0, 3, 4, 1, 2, 5)
    else:
        parts = parts.transpose(0, 2, 3, 1, 4)
    kind = np.int8 if source == "u8" and flags.vnni else np.int16
    blocks, start = [], 0
    for width in widths:
        block = np.moveaxis(parts[start : start + width], 0, 2)  # tap, step, vector, ...
        blocks.append(np.ascontiguousarray(block, dtype=kind).reshape(-1))
        start += width
    return np.concatenate(blocks)


def block_widths(outputs: int, lanes: int, widest: int) -> list[int]:
    """Vectors of each block of output channels: as even as can be, the wide ones first."""
    vectors = -(-outputs // lanes)
    count = -(-vectors // widest)
    return [vectors // count + (i < vectors % count) for i in range(count)]
