"""Integer multipliers over a common shift, for sums, selections and comparisons (numerics.md 3).

Operands of different dtypes: an int8 code beside an int16 one counts as 256 int16 codes of a scale
256 times smaller, so its multiplier is 256 times one of 15 bits. Without that the int16 operand
would be left with 7 bits of its multiplier, and the sum off by up to 256 steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qtune.dtype import QuantDType
from qtune.ops.kernel import ConvertContext, QValue, Value
from qtune.ops.quant.precision import multiplier, multipliers_over_shift

LARGEST_SHIFT = 46
"""From a shift of 47 on every term of 15 bits rounds to 0 (numerics.md section 2.3)."""

LARGEST_HIGH_SHIFT = 62
"""The same of one multiplier of 31 bits."""

LEFT_SHIFT = 16
"""A sum of at least one step, shifted left this far, saturates int16: further adds nothing."""

TERM_LIMIT = 1 << 61
"""A constant of a sum is cut here: it saturates every output, and int64 sums can't wrap."""


@dataclass(frozen=True, slots=True)
class CommonShift:
    """Multipliers ``m`` of several operands over one shift ``n``, which lies in 0 .. 46.

    The one of a product has a shift of up to 62 with high precision.
    """

    m: tuple[int, ...]
    n: int

    def term(self, steps: float) -> int:
        """The integer a number of ``steps`` output scales adds: ``floor(steps * 2**n + 0.5)``."""
        return fixed_point(steps * 2.0**self.n)


def fixed_point(value: float) -> int:
    """``floor(value + 0.5)``, cut at ``TERM_LIMIT``; infinities too.

    >>> fixed_point(2.5), fixed_point(-2.5)
    (3, -2)
    """
    cut = max(-float(TERM_LIMIT), min(float(TERM_LIMIT), value))
    return math.floor(cut + 0.5) if abs(cut) < 2.0**52 else int(cut)


def shared(
    ctx: ConvertContext,
    terms: Sequence[tuple[float, QuantDType]],
    operands: Sequence[QValue] = (),
) -> CommonShift:
    """Common shift of operands, each given by its real factor and its dtype.

    A factor whose multiplier becomes 0 is reported, unless it is that of one of the ``operands``
    whose codes are all 0. Shifts outside 0 .. 46 are replaced by equal ones: beyond 46 all terms
    are 0, below 0 the multipliers are shifted left.
    """
    widest = max(dtype.bits for _, dtype in terms)
    moved = [widest - dtype.bits for _, dtype in terms]
    factors = [factor for factor, _ in terms]
    aligned = [math.ldexp(f, -bits) for f, bits in zip(factors, moved, strict=True)]
    m, n = multipliers_over_shift(ctx, aligned)
    result = _in_range(tuple(v << b for v, b in zip(m, moved, strict=True)), n, LARGEST_SHIFT)
    zero = {i for i, codes in enumerate(operands) if codes.code_min == codes.code_max == 0}
    for index, (m_i, factor) in enumerate(zip(result.m, factors, strict=True)):
        if m_i == 0 and factor != 0 and index not in zero:
            ctx.report(
                "zero_multiplier",
                f"operand {index} is lost: its scale is {abs(factor):.3g} of the output's, so its "
                "multiplier over the common shift becomes 0. Check the range of the operands, and "
                "give the result a smaller one or qint16. A constant as small as an eps is better "
                "a plain number (in an ONNX file: without QuantizeLinear), or left out",
                operand=index,
                factor=factor,
            )
    return result


def single(ctx: ConvertContext, factor: float, sum_bits: int = 30) -> CommonShift:
    """The one multiplier of a product or a sum of codes, with a shift from 0 on.

    ``sum_bits``: bits of the largest magnitude it multiplies.
    """
    m, n = multiplier(ctx, factor, sum_bits)
    return _in_range((m,), n, LARGEST_HIGH_SHIFT if ctx.high_precision_qpp else LARGEST_SHIFT)


def _in_range(m: tuple[int, ...], n: int, largest: int) -> CommonShift:
    if n > largest:
        return CommonShift((0,) * len(m), 0)
    if n < 0:
        return CommonShift(tuple(v << min(-n, LEFT_SHIFT) for v in m), 0)
    return CommonShift(m, n)


def integers(ctx: ConvertContext, **numbers: int) -> list[Value]:
    """One int64 scalar constant for each number, named by its keyword."""
    return [ctx.constant(np.array(v, dtype=np.int64), name) for name, v in numbers.items()]
