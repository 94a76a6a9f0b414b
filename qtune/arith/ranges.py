"""The range a grid should cover, found on a histogram (docs/numerics.md section 4).

NumPy, one channel. ``counts`` and ``width`` are those of ``qtune.arith.histogram``, ``top`` is the
largest magnitude. Results are float32 ranges, from which ``scale_from_absmax`` gives the scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.arith.rounding import FloatArray, Int64Array
from qtune.dtype import QuantDType

MSE_STEPS = 100
"""The mse search tries hundredths of the largest magnitude."""

MIX_PERCENTILES = (100.0, 99.9999, 99.999, 99.99, 99.9)
"""The percentiles that mix tries, widest range first."""

SHARE_SLACK = 1.0 - 2.0**-40
"""A share of the data is reached within float64's rounding of ``n * percentile / 100``."""

DIVERGENCE_STEPS = 2.0**32
"""Divergences are compared in steps of ``2**-32``, far above what float64 sums differ by."""

_TINY = np.finfo(np.float32).tiny


def percentile_range(counts: Any, width: Any, top: Any, percentile: float) -> np.float32:
    """Return the upper edge of the first bin that reaches ``percentile`` % of the counts.

    The edge of the last bin that holds data is ``top`` itself.

    >>> float(percentile_range([98, 1, 0, 1], 0.5, 1.75, 99))
    1.0
    """
    reached = np.cumsum(np.asarray(counts, dtype=np.int64))
    needed = float(reached[-1]) * percentile / 100 * SHARE_SLACK
    index = int(np.argmax(reached >= needed))
    if reached[index] == reached[-1]:
        return np.float32(top)
    return min(np.float32(index + 1) * np.float32(width), np.float32(top))


def mse_candidates(top: Any, stride: int) -> FloatArray:
    """Return the ranges ``top * i / 100`` for i = 100 down to 1 in steps of ``stride``.

    In float64, rounded once: ``top * 100`` may lie beyond float32.
    """
    steps = np.arange(MSE_STEPS, 0, -stride).astype(np.float64)
    return np.asarray((np.float64(top) * steps / MSE_STEPS).astype(np.float32))


def mix_candidates(counts: Any, width: Any, top: Any) -> FloatArray:
    """Return the ranges of ``MIX_PERCENTILES``."""
    found = [percentile_range(counts, width, top, p) for p in MIX_PERCENTILES]
    return np.asarray(found, dtype=np.float32)


def squared_error(counts: Any, width: Any, candidate: Any, grid: QuantDType) -> float:
    """Return the summed squared error of all counts, at the bins' centres, on ``grid``.

    Values and codes in float32 as in fake-quantize, the sum in float64.
    """
    known = np.asarray(counts)
    centres = (np.arange(known.size, dtype=np.float32) + np.float32(0.5)) * np.float32(width)
    scale = max(np.float32(candidate) / np.float32(grid.divisor), _TINY)
    codes = np.minimum(np.floor(centres / scale + np.float32(0.5)), np.float32(grid.qmax))
    return float(((codes * scale - centres).astype(np.float64) ** 2 * known).sum())


def least_squares_range(counts: Any, width: Any, candidates: Any, grid: QuantDType) -> np.float32:
    """Return the candidate with the least squared error; of equal ones the first."""
    errors = [squared_error(counts, width, candidate, grid) for candidate in candidates]
    return np.float32(candidates[int(np.argmin(errors))])


def divergence(counts: Any, kept: int, grid: QuantDType) -> float:
    """Return ``KL(P || Q)`` in nats, for a range that keeps the first ``kept`` bins.

    ``P``: their counts, the last of them with all that is cut off. ``Q``: what is left of the kept
    counts after quantization: each code's total, spread evenly over the bins of that code that P
    fills. A code that only cut values reach counts as one value. Zero where nothing is lost.
    """
    h = np.asarray(counts, dtype=np.int64)
    p = h[:kept].copy()
    p[-1] += h[kept:].sum()
    codes = _codes(kept, grid)
    total = np.bincount(codes, weights=h[:kept])[codes]
    filled = np.bincount(codes, weights=p > 0)[codes]
    held = p > 0
    q = np.maximum(total[held], 1.0) / filled[held]
    shares = p[held] / p.sum()
    return float((shares * np.log(shares / (q / q.sum()))).sum())


def kl_range(counts: Any, width: Any, top: Any, grid: QuantDType) -> np.float32:
    """Return the range whose quantized distribution diverges least; of equal ones the larger.

    Tried are the upper edges of all bins from bin ``qmax + 1`` on up to the last that holds data,
    whose edge is ``top``. A grid with as many codes as there are bins keeps ``top``.
    """
    h = np.asarray(counts)
    used = int(np.flatnonzero(h).max(initial=0)) + 1
    tried = range(used, min(grid.qmax + 1, used) - 1, -1)
    steps = [np.floor(divergence(h, kept, grid) * DIVERGENCE_STEPS + 0.5) for kept in tried]
    kept = tried[int(np.argmin(steps))]
    if kept == used:
        return np.float32(top)
    return min(np.float32(kept) * np.float32(width), np.float32(top))


def _codes(kept: int, grid: QuantDType) -> Int64Array:
    """The code of each bin's centre, where the range ends at the upper edge of bin ``kept - 1``.

    ``floor((j + 1/2) / kept * divisor + 1/2)``, in integers.
    """
    steps = grid.qmax - grid.qmin
    centres = 2 * np.arange(kept, dtype=np.int64) + 1
    return np.asarray(np.minimum((centres * steps + 2 * kept) // (4 * kept), grid.qmax))
