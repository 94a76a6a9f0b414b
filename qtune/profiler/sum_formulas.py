"""The metrics that are made of a few sums over the values of two tensors: which sums, and how.

``a`` is the baseline's value, ``b`` the other, ``e = a - b``, all in float64 (numerics.md section
5). :mod:`qtune.profiler.metric` takes the sums of one metric, :mod:`qtune.profiler.pair_sums` those
of several in one pass; the formula is this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class SumFormula:
    """``of(count, *sums)``: the metric from the ``needs`` in their order.

    ``None`` where the sums don't tell: they left the range of float64, or one is 0.
    """

    needs: tuple[str, ...]
    of: Callable[..., float | None]


def largest(count: int, top: float) -> float:
    """``max(abs(e))``."""
    return top


def mean(count: int, total: float) -> float:
    """A sum over the values by their number."""
    return total / count


def cosine(count: int, ab: float, aa: float, bb: float) -> float | None:
    """``sum(a b) / sqrt(sum(a a) sum(b b))``."""
    if ab == aa == bb and 0 < aa < math.inf:
        return 1.0
    norms = math.sqrt(aa) * math.sqrt(bb)
    return ab / norms if 0 < norms < math.inf and math.isfinite(ab) else None


def sqnr(count: int, aa: float, ee: float) -> float | None:
    """``10 log10(sum(a a) / sum(e e))`` in dB."""
    if 0 < ee < math.inf and 0 < aa < math.inf:
        return 10 * (math.log10(aa) - math.log10(ee))
    return None


FORMULAS: Mapping[str, SumFormula] = MappingProxyType(
    {
        "ATOL": SumFormula(("top_e",), largest),
        "L1": SumFormula(("abs_e",), mean),
        "MSE": SumFormula(("ee",), mean),
        "COSINE": SumFormula(("ab", "aa", "bb"), cosine),
        "SQNR": SumFormula(("aa", "ee"), sqnr),
    }
)
"""By the metric's name."""
