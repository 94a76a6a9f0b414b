"""From exact sums to held output codes: bias, fused operand, saturation, requantize.

numerics.md sections 2.1 to 2.4. Sums are rows [R, C], given in parts that add up to them; the chain
runs block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qtune.arith_fast.blocks import block_elements, spans
from qtune.arith_fast.held import held_dtype, offset
from qtune.arith_fast.requantize import INT48_BOUND
from qtune.arith_fast.steps import (
    Constants,
    DoubleStep,
    IntegerStep,
    int64_constants,
    rescale,
)
from qtune.dtype import QuantDType, qint32
from qtune.errors import ArgumentError

Addend = tuple[Any, Any, QuantDType]
"""``(m_a, n_a, dtype)`` of a fused operand: its rescale to the accumulator and its dtype."""


class AddendStep:
    """``rescale(codes, m, n)`` of a fused operand; float64 holds its 31-bit products."""

    def __init__(self, m: Any, n: Any, dtype: QuantDType, wide: bool) -> None:
        c = int64_constants(m, n, 0)
        shift = c.n.clamp(-512, 512).double()
        self.factor = torch.ldexp(c.m.double(), -shift)
        self.half = 0.5 - offset(dtype) * self.factor
        self._exact = bool((c.n <= 45).all())
        self._constants, self._dtype, self._wide = c, dtype, wide
        largest = int((self.factor.abs() * -dtype.qmin).max().clamp_max(2.0**62)) + 1
        self.bound = largest if wide else min(largest, -qint32.qmin)
        self.is_plain = self._exact and self.bound < -qint32.qmin

    def __call__(self, held: torch.Tensor) -> torch.Tensor:
        """Return the float64 integers of held rows, clamped to int32 unless wide."""
        if not self._exact:
            codes = held.to(torch.int64).sub_(offset(self._dtype))
            values = rescale(codes, self._constants.m, self._constants.n).double()
        else:
            values = held.to(torch.float64)
            torch.addcmul(self.half, values, self.factor, out=values).floor_()
        if self._wide or self.bound < -qint32.qmin:
            return values
        return values.clamp_(qint32.qmin, qint32.qmax)


class Epilogue:
    """``epilogue(parts, target[, addend rows])``: fill held rows from the parts of the sums.

    ``bound``: largest magnitude of a sum. ``saturated`` counts sums that int32 could not hold.
    """

    def __init__(
        self,
        bias: Any,
        m: Any,
        n: Any,
        *,
        bound: int,
        out: QuantDType,
        lo: int | None,
        hi: int | None,
        addend: Addend | None,
        wide: bool,
    ) -> None:
        self.out, self.saturated, self.wide = out, 0, wide
        self.operand = None if addend is None else AddendStep(*addend, wide)
        extra = 0 if self.operand is None else self.operand.bound
        if out is qint32:
            m, n = 1, 0
        c = int64_constants(m, n, 0 if bias is None else bias)
        largest = bound + int(c.bias.abs().max()) + extra
        self.saturates = not wide and largest > qint32.qmax
        self.bias = c.bias.double()
        if self.saturates:
            c, largest = Constants(c.m, c.n, torch.zeros_like(c.bias)), 1 << 31
        self.step = None if out is qint32 else _step(c, largest, lo, hi, out)
        if wide and out is qint32:
            raise ArgumentError(
                "int16 x int16 has no int32 output (48-bit accumulator): "
                "give the operator an int8 or int16 output, or int8 weights"
            )
        if largest > INT48_BOUND:
            raise ArgumentError(f"sums up to {largest} do not fit the 48-bit accumulator")

    def __call__(
        self,
        parts: Sequence[torch.Tensor],
        target: torch.Tensor,
        addend: torch.Tensor | None = None,
    ) -> None:
        """Fill ``target`` [R, C] from parts [R, C] of the sums and the addend's held rows."""
        count, channels = target.shape
        rows = max(1, block_elements() // max(channels, 1))
        work = torch.empty((min(rows, count), channels), dtype=torch.float64)
        for start, stop in spans(count, rows):
            acc = work[: stop - start].copy_(parts[0][start:stop])
            for part in parts[1:]:
                acc.add_(part[start:stop].double())
            operand = None if addend is None else addend[start:stop]
            self._run(acc, target[start:stop], operand)

    def _run(self, acc: torch.Tensor, target: torch.Tensor, operand: torch.Tensor | None) -> None:
        if self.saturates:
            self._clamp(acc.add_(self.bias))
        if self.operand is not None and operand is not None:
            acc.add_(self.operand(operand))
            if self.saturates:
                self._clamp(acc)
        if self.step is None:
            target.copy_(acc if self.saturates else acc.add_(self.bias))
        elif isinstance(self.step, IntegerStep):
            self.step.run(acc.to(torch.int64), target)
        else:
            self.step.run(acc, target)

    def _clamp(self, acc: torch.Tensor) -> None:
        low, high = torch.aminmax(acc)
        if float(low) < qint32.qmin or float(high) > qint32.qmax:
            self.saturated += int(((acc < qint32.qmin) | (acc > qint32.qmax)).sum())
            acc.clamp_(qint32.qmin, qint32.qmax)


def _step(
    c: Constants, bound: int, lo: int | None, hi: int | None, out: QuantDType
) -> DoubleStep | IntegerStep:
    low = out.qmin if lo is None else lo
    high = out.qmax if hi is None else hi
    if not out.qmin <= low <= high <= out.qmax:
        raise ArgumentError(f"expected codes of {out} with lo <= hi, got lo={low}, hi={high}")
    kind = DoubleStep if DoubleStep.is_exact(c, bound, out) else IntegerStep
    return kind(c, bound, low, high, out)


def empty_rows(rows: int, channels: int, out: QuantDType) -> torch.Tensor:
    """Return an unfilled held matrix."""
    return torch.empty((rows, channels), dtype=held_dtype(out))
