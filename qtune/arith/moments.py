"""A range from mean and standard deviation, one channel, in NumPy (docs/numerics.md section 4)."""

from __future__ import annotations

from typing import Any

import numpy as np


def deviation_range(x: Any, factor: float) -> np.float32:
    """Return ``min(absmax, abs(mean) + factor * std)`` of the finite values, in float64 until then.

    ``std`` is the population's: the mean squared distance, not divided by n - 1.

    >>> float(deviation_range([-1.0, 1.0, -1.0, 5.0], 1.0))
    3.4494898319244385
    """
    values = np.asarray(x)
    limit = np.finfo(np.float32).max
    finite = np.clip(values[np.isfinite(values)].astype(np.float64), -limit, limit)
    reach = np.float32(abs(finite.mean()) + factor * finite.std())
    return min(reach, np.float32(np.abs(finite).max()))
