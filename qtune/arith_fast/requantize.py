"""Requantization in torch, equal to ``qtune.arith.requantize`` in every bit (numerics.md 2.3, 7).

Two exact ways: in float64 where accumulator, multiplier and shift keep every intermediate within
2**53 steps of ``2**-n`` (then ``acc * M + B`` is exact, in any order of operations), else in int64.
Both run block by block, so that the wide intermediates stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qtune.arith_fast.blocks import block_elements, channel_rows, spans, storage_order
from qtune.arith_fast.buffers import empty_like
from qtune.arith_fast.held import channels_last, held_dtype, offset, quant_dtype_of
from qtune.arith_fast.native.elementwise import SOURCES, native_step
from qtune.arith_fast.native.lookup import gather
from qtune.arith_fast.steps import DoubleStep, IntegerStep, int64_constants, rescale
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError

__all__ = [
    "INT32_BOUND",
    "INT48_BOUND",
    "Requantizer",
    "add_common_shift",
    "requantize_acc",
    "requantize_held",
    "rescale",
]

INT32_BOUND = 1 << 31
"""Largest magnitude of an int32 accumulator."""

_BYTES = 256

INT48_BOUND = 1 << 47
"""Largest magnitude of a 48-bit accumulator."""


def requantize_acc(
    acc: torch.Tensor,
    m: Any,
    n: Any,
    bias: Any,
    lo: int,
    hi: int,
    out_dtype: QuantDType,
) -> torch.Tensor:
    """Return held codes ``clamp(rescale(acc + bias, m, n), lo, hi)``.

    ``acc``: exact integers as int32, int64, float32 or float64, any strides. ``m``, ``n``, ``bias``
    (``None`` is 0): integers, or one per channel (dim 1). ``acc`` must lie in int32, or in 48 bits
    where it is int64 or float64. Called often with the same constants, a :class:`Requantizer`
    saves their preparation.
    """
    bound = INT48_BOUND if acc.dtype in (torch.int64, torch.float64) else INT32_BOUND
    return Requantizer(m, n, bias, lo=lo, hi=hi, out=out_dtype, bound=bound)(acc)


def requantize_held(
    q: torch.Tensor, m: int, n: int, in_dtype: QuantDType, out_dtype: QuantDType
) -> torch.Tensor:
    """Return held codes on another scale or dtype: ``saturate(rescale(q, m, n))``."""
    step = Requantizer(
        m,
        n,
        lo=out_dtype.qmin,
        hi=out_dtype.qmax,
        out=out_dtype,
        bound=-in_dtype.qmin,
        zero=offset(in_dtype),
    )
    return step(q)


def add_common_shift(
    operands: Sequence[torch.Tensor],
    ms: Sequence[int],
    n: int,
    out_dtype: QuantDType,
    constant: int = 0,
    lo: int | None = None,
    hi: int | None = None,
) -> torch.Tensor:
    """Return held codes ``clamp((sum(m_i * q_i) + constant + 2**(n-1)) >> n, lo, hi)``.

    ``operands`` are held codes, which broadcast. ``constant`` is a scalar operand on the grid
    ``2**-n`` of the output (numerics.md section 3, add and sub). lo, hi default to the dtype's.
    """
    if len(operands) != len(ms) or not operands:
        raise ArgumentError(f"expected one multiplier per operand, got {len(operands)}, {len(ms)}")
    dtypes = [quant_dtype_of(q) for q in operands]
    total = constant - sum(m * offset(d) for m, d in zip(ms, dtypes, strict=True))
    bound = sum(abs(m) * (-d.qmin) for m, d in zip(ms, dtypes, strict=True))
    step = Requantizer(
        1,
        n,
        total,
        lo=out_dtype.qmin if lo is None else lo,
        hi=out_dtype.qmax if hi is None else hi,
        out=out_dtype,
        bound=2 * bound,
    )
    return step.weighted_sum(operands, ms)


class Requantizer:
    """``clamp(rescale(acc + bias, m, n), lo, hi)`` as held codes, prepared once.

    ``bound``: largest magnitude of ``acc``; it decides whether float64 is exact. ``zero`` is what
    a held input holds too much. ``axis``: the dimension that per-channel constants run along.
    """

    def __init__(
        self,
        m: Any,
        n: Any,
        bias: Any = None,
        *,
        lo: int,
        hi: int,
        out: QuantDType,
        bound: int = INT32_BOUND,
        zero: int = 0,
        axis: int = 1,
    ) -> None:
        if not out.qmin <= lo <= hi <= out.qmax:
            raise ArgumentError(f"expected codes of {out} with lo <= hi, got lo={lo}, hi={hi}")
        constants = int64_constants(m, n, 0 if bias is None else bias)
        constants = constants.moved_by(-zero)
        self.out, self.axis = out, axis
        self.channels = constants.m.numel()
        kind = DoubleStep if DoubleStep.is_exact(constants, bound + zero, out) else IntegerStep
        self.step: DoubleStep | IntegerStep = kind(constants, bound + zero, lo, hi, out)
        self._entries: torch.Tensor | None = None
        self._native = native_step(self.step, held_dtype(out))

    def __call__(self, acc: torch.Tensor) -> torch.Tensor:
        """Return the held codes of ``acc`` in its shape."""
        result = empty_like(acc, held_dtype(self.out))
        source, target = self._flat(acc), self._flat(result)
        if source is None or target is None:
            work = self.step.work(acc.shape)
            work.copy_(acc)
            self.step.run(work, result, self._shape(acc))
        else:
            self.write(source, target)
        return channels_last(result)

    def write(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Fill ``target`` from ``source``, both flat, or ``[rows, channels]``, in one order."""
        if source.dtype == torch.uint8 and source.dim() == 1 and len(source) > _BYTES:
            gather(self._table(), source, target, 0)
            return
        self._write(source, target)

    def _table(self) -> torch.Tensor:
        """The results of all bytes."""
        if self._entries is None:
            entries = torch.empty(_BYTES, dtype=held_dtype(self.out))
            self._write(torch.arange(_BYTES, dtype=torch.uint8), entries)
            self._entries = entries
        return self._entries

    def _write(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if self._native is not None and source.dtype in SOURCES and source.numel():
            self._native([source], [1], target)
            return
        width = source.shape[1] if source.dim() == 2 else 1
        rows = max(1, block_elements() // max(width, 1))
        work = self.step.work((min(rows, source.shape[0]), *source.shape[1:]))
        for start, stop in spans(source.shape[0], rows):
            block = work[: stop - start]
            block.copy_(source[start:stop])
            self.step.run(block, target[start:stop], self._shape(source))

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the held codes of the product of two tensors of held codes; they broadcast."""
        zeros = [offset(quant_dtype_of(q)) for q in (a, b)]
        flat = [view for q in (a, b) if (view := storage_order(q)) is not None]
        alike = a.shape == b.shape and a.stride() == b.stride() and len(flat) == 2
        if self._native is not None and alike and a.numel() and self.channels == 1:
            result = empty_like(a, held_dtype(self.out))
            target = storage_order(result)
            if target is not None and result.stride() == a.stride():
                self._native(flat, zeros, target, product=True)
                return channels_last(result)
        narrow = a.dtype == b.dtype == torch.uint8 and 0 not in zeros
        wide = torch.int16 if narrow else torch.int32
        x, y = (q.to(wide).sub_(zero) for q, zero in zip((a, b), zeros, strict=True))
        return self(x.mul(y))

    def weighted_sum(self, operands: Sequence[torch.Tensor], ms: Sequence[int]) -> torch.Tensor:
        """Return the held codes of ``sum(m_i * operand_i)``; the operands broadcast."""
        shape = np.broadcast_shapes(*(tuple(q.shape) for q in operands))
        first = next((q for q in operands if q.shape == shape), None)
        if first is None:
            result = torch.empty(shape, dtype=held_dtype(self.out))
        else:
            result = empty_like(first, held_dtype(self.out))
        target = storage_order(result)
        # The shape too: [C, H, W] has as many elements as [1, C, H, W], in another order.
        is_uniform = all(q.shape == shape and q.stride() == result.stride() for q in operands)
        if target is None or not is_uniform:
            work = self.step.work(shape)
            self._accumulate(work, operands, ms)
            self.step.run(work, result, [])
            return channels_last(result)
        flat = [view for q in operands if (view := storage_order(q)) is not None]
        if self._native is not None and target.numel():
            self._native(flat, ms, target)
            return channels_last(result)
        work = self.step.work((min(block_elements(), target.numel()),))
        for start, stop in spans(target.numel(), block_elements()):
            block = work[: stop - start]
            self._accumulate(block, [v[start:stop] for v in flat], ms)
            self.step.run(block, target[start:stop], [])
        return channels_last(result)

    @staticmethod
    def _accumulate(
        work: torch.Tensor, operands: Sequence[torch.Tensor], ms: Sequence[int]
    ) -> None:
        """``work = sum(m_i * operand_i)``."""
        work.copy_(operands[0]).mul_(ms[0])
        for q, m in zip(operands[1:], ms[1:], strict=True):
            work.add_(q.to(work.dtype), alpha=m)

    def _flat(self, x: torch.Tensor) -> torch.Tensor | None:
        if self.channels == 1:
            return storage_order(x)
        return channel_rows(x, self.axis)

    def _shape(self, like: torch.Tensor) -> list[int]:
        """Shape in which the constants broadcast on ``like``."""
        if self.channels == 1:
            return []
        shape = [1] * like.dim()
        shape[1 if like.dim() == 2 else self.axis] = -1
        return shape
