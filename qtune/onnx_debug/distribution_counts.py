"""Counts of a stream of values: a histogram in memory of constant size, in one pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MOST_BINS = 4096
_FINEST = -150  # exponent of a width below float32's smallest number
_PLACES = 60  # bits of the largest place, which has to fit into int64


class Counts:
    """A histogram whose bins are ``[k w, (k+1) w)`` for whole ``k``, with ``w`` a power of two.

    ``w`` is the smallest for which all values seen fit into ``MOST_BINS`` bins; when it doubles,
    neighbours are added up, so the counts are exact and don't depend on the order of the data.
    NaN and infinities are counted in ``lost`` alone. ``least``, ``most``: the extremes.
    """

    def __init__(self) -> None:
        self.exponent = _FINEST
        self.first = 0
        self.bins: Array = np.zeros(0, np.int64)
        self.least, self.most = math.inf, -math.inf
        self.lost = 0

    @property
    def width(self) -> float:
        """``w``."""
        return math.ldexp(1.0, self.exponent)

    @property
    def total(self) -> int:
        """The number of values counted."""
        return int(self.bins.sum())

    @property
    def largest(self) -> float:
        """The value of the largest magnitude, with its sign; 0 where there is none."""
        if self.most < self.least:
            return 0.0
        return self.most if abs(self.most) >= abs(self.least) else self.least

    def add(self, values: Array) -> None:
        """Count the elements of an array of any shape and dtype of real numbers."""
        flat = np.asarray(values, np.float64).reshape(-1)
        finite = np.isfinite(flat)
        if not finite.all():
            self.lost += int(flat.size - np.count_nonzero(finite))
            flat = flat[finite]
        if not flat.size:
            return
        self.least = min(self.least, float(flat.min()))
        self.most = max(self.most, float(flat.max()))
        self._widen()
        places = np.floor(np.ldexp(flat, -self.exponent)).astype(np.int64) - self.first
        self.bins += np.bincount(places, minlength=self.bins.size)

    def _widen(self) -> None:
        """Widen the bins until there are enough of them, and put the counts where they belong."""
        exponent = max(self.exponent, math.frexp(self.largest)[1] - _PLACES)
        while self._place(self.most, exponent) - self._place(self.least, exponent) >= MOST_BINS:
            exponent += 1
        first = self._place(self.least, exponent)
        bins = np.zeros(self._place(self.most, exponent) - first + 1, np.int64)
        old = np.arange(self.first, self.first + self.bins.size) >> (exponent - self.exponent)
        np.add.at(bins, old - first, self.bins)
        self.exponent, self.first, self.bins = exponent, first, bins

    @staticmethod
    def _place(value: float, exponent: int) -> int:
        return math.floor(math.ldexp(value, -exponent))

    def shown(self, most: int) -> tuple[Array, Array]:
        """Edges ``[n + 1]`` and counts ``[n]`` with ``n <= most``: bins joined in twos, fours, ...

        Empty arrays where no value was counted.
        """
        if not self.bins.size:
            return np.zeros(0), np.zeros(0, np.int64)
        last, more = self.first + self.bins.size - 1, 0
        while (last >> more) - (self.first >> more) >= most:
            more += 1
        first = self.first >> more
        counts = np.zeros((last >> more) - first + 1, np.int64)
        np.add.at(counts, (np.arange(self.first, last + 1) >> more) - first, self.bins)
        edges = np.arange(first, first + counts.size + 1, dtype=np.float64)
        return np.ldexp(edges, self.exponent + more), counts
