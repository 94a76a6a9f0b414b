"""The values of each channel of a tensor, as they stream by, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qtune.onnx_debug.pictures_boxes import Box

Array = np.ndarray[Any, Any]

MOST_KEPT = 1 << 25
"""Values kept of all tensors that are looked at together."""
MOST_KEPT_OF_CHANNEL = 1 << 16
_FLIERS = 60  # drawn for a channel
_NAN = float("nan")


class ChannelValues:
    """Extremes, moments and a sample of each channel.

    ``items``: how many arrays will come. Extremes, mean, deviation and zeros are those of all
    values. Quantiles are exact while a channel has at most ``MOST_KEPT_OF_CHANNEL`` values, and all
    channels of all ``tensors`` together ``MOST_KEPT``; beyond, each item gives an equal part, drawn
    with a fixed seed. Values that are not finite are left out and counted in ``lost``. Where items
    have different numbers of channels, a channel has the values of the items that have it.
    """

    def __init__(self, channels: int, items: int, tensors: int = 1) -> None:
        most = min(MOST_KEPT_OF_CHANNEL, max(1, MOST_KEPT // max(channels * tensors, 1)))
        self._of_item = max(1, most // max(items, 1))
        self._rng = np.random.default_rng(0)
        self._kept: list[Array] = []
        self.least, self.most = np.full(channels, np.inf), np.full(channels, -np.inf)
        self.count = np.zeros(channels, np.int64)
        self.lost = np.zeros(channels, np.int64)
        self.zeros = np.zeros(channels, np.int64)
        self.mean = np.zeros(channels)
        self._spread = np.zeros(channels)  # sum of squared distances from the mean

    def add(self, rows: Array) -> None:
        """One item, ``[channels, values]`` of any dtype of real numbers."""
        rows = np.asarray(rows, np.float64)
        channels = len(rows)
        self._grow(channels - self.count.size)
        if channels < self.count.size:  # NaN is left out
            absent = np.full((self.count.size - channels, rows.shape[1]), np.nan)
            rows = np.concatenate((rows, absent))
        finite = np.isfinite(rows)
        count = finite.sum(axis=1)
        self.lost[:channels] += rows.shape[1] - count[:channels]
        self.zeros += (rows == 0).sum(axis=1)
        self.least = np.minimum(self.least, rows.min(axis=1, initial=np.inf, where=finite))
        self.most = np.maximum(self.most, rows.max(axis=1, initial=-np.inf, where=finite))
        self._join(rows, finite, count)
        self._keep(rows)

    def _grow(self, more: int) -> None:
        """Add channels without values."""
        fresh = {"least": np.inf, "most": -np.inf}
        for name in ("least", "most", "count", "lost", "zeros", "mean", "_spread") * (more > 0):
            old = getattr(self, name)
            added = np.full(more, fresh.get(name, 0), old.dtype)
            setattr(self, name, np.concatenate((old, added)))

    def _join(self, rows: Array, finite: Array, count: Array) -> None:
        """Mean and spread of what came and of what comes (Chan, Golub, LeVeque)."""
        some = np.maximum(count, 1)
        mean = np.sum(rows, axis=1, where=finite) / some
        spread = np.square(rows - mean[:, None], where=finite, out=np.zeros_like(rows)).sum(axis=1)
        whole = np.maximum(self.count + count, 1)
        shift = mean - self.mean
        self._spread += spread + np.square(shift) * self.count * count / whole
        self.mean += shift * count / whole
        self.count += count

    def _keep(self, rows: Array) -> None:
        if rows.shape[1] > self._of_item:
            chosen = self._rng.choice(rows.shape[1], self._of_item, replace=False)
            rows = rows[:, np.sort(chosen)]
        self._kept.append(rows.astype(np.float32))

    @property
    def deviation(self) -> Array:
        """The standard deviation of each channel, of the values as the whole population."""
        return np.sqrt(self._spread / np.maximum(self.count, 1))

    def quantiles(self, shares: tuple[float, ...]) -> Array:
        """``[channels, shares]``, linear between values; NaN for a channel without any."""
        rows = [np.quantile(row, shares) if row.size else _none(shares) for row in self]
        return np.array(rows, np.float64).reshape(-1, len(shares))

    def __iter__(self) -> Iterator[Array]:
        """The kept finite values of each channel."""
        for channel in range(self.count.size):
            rows = [kept[channel] for kept in self._kept if channel < len(kept)]
            row = np.concatenate(rows) if rows else np.zeros(0)
            yield row[np.isfinite(row)].astype(np.float64)

    def boxes(self) -> list[Box]:
        """The box of each channel, for the picture; all NaN for one without values."""
        bounds = zip(self.least.tolist(), self.most.tolist(), self.mean.tolist(), strict=True)
        return [_box(row, *ends) for row, ends in zip(self, bounds, strict=True)]


def _none(shares: tuple[float, ...]) -> Array:
    return np.full(len(shares), np.nan)


def _box(row: Array, least: float, most: float, mean: float) -> Box:
    if not row.size:
        return Box(_NAN, _NAN, _NAN, _NAN, _NAN, _NAN)
    lower, median, upper = (float(q) for q in np.quantile(row, (0.25, 0.5, 0.75)))
    reach = 1.5 * (upper - lower)
    inside = row[(row >= lower - reach) & (row <= upper + reach)]
    low, high = float(inside.min()), float(inside.max())
    beyond = np.unique(np.concatenate((row[(row < low) | (row > high)], [least, most])))
    beyond = beyond[(beyond < low) | (beyond > high)]
    if beyond.size > _FLIERS:  # evenly chosen, with both ends
        beyond = beyond[np.linspace(0, beyond.size - 1, _FLIERS).astype(int)]
    return Box(low, lower, median, mean, upper, high, tuple(beyond.tolist()))
