"""The numbers of a tensor and of its channels: range, shares, and the error of calibration."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from qtune.onnx_debug.channels import by_channel, channel_axis
from qtune.onnx_debug.channels_values import ChannelValues
from qtune.onnx_debug.distribution_stream import ORDINARY, Subject

Array = np.ndarray[Any, Any]

_NOISE = 1e-5  # of float32 sums in another order than those that chose the threshold
_SHARES = (0.001, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor (``channel`` None) or one channel of it.

    ``kind``: ``node``, ``weight``, ``activation``. ``values``: finite values that were seen;
    ``not_finite``: the others, which are in no number. ``std``: of the values as the whole
    population. ``p0_1`` to ``p99_9``: percentiles. ``zeros``: share of values that are 0.
    ``threshold``, ``scale`` (the largest ones), ``bits``: of the calibration node; for an ordinary
    node of the one that reads its output, ``None`` without one. ``clipped``: share of values whose
    magnitude is above the threshold, by more than noise (1e-5 of it). ``mse``, ``sqnr`` (dB),
    ``max_error``: of the calibration node alone; for an ordinary node of its output in the
    calibrated model.
    """

    node: str
    kind: str
    tensor: str
    channel: int | None
    values: int
    not_finite: int
    min: float
    max: float
    mean: float
    std: float
    p0_1: float
    p1: float
    p25: float
    p50: float
    p75: float
    p99: float
    p99_9: float
    zeros: float
    bits: int | None
    threshold: float | None
    scale: float | None
    clipped: float | None
    mse: float
    sqnr: float
    max_error: float


class Numbers:
    """The numbers of ``[channels, values]``, item by item."""

    def __init__(self, channels: int, items: int, tensors: int) -> None:
        self.values = ChannelValues(channels, items, tensors)
        self.clipped = np.zeros(channels, np.int64)
        self.noise, self.signal = np.zeros(channels), np.zeros(channels)
        self.max_error = np.zeros(channels)

    def add(self, plain: Array, calibrated: Array, thresholds: Array | None) -> None:
        """One item: two arrays ``[channels, values]``, thresholds that broadcast on them."""
        self.values.add(plain)
        plain = plain.astype(np.float64)
        calibrated = calibrated.astype(np.float64)
        usable = np.isfinite(plain) & np.isfinite(calibrated)
        error = np.subtract(calibrated, plain, out=np.zeros_like(plain), where=usable)
        self.noise += np.square(error).sum(axis=1)
        self.signal += np.square(plain, out=np.zeros_like(plain), where=usable).sum(axis=1)
        self.max_error = np.maximum(self.max_error, np.abs(error).max(axis=1, initial=0.0))
        if thresholds is not None:
            limits = thresholds.astype(np.float64) * (1 + _NOISE)
            self.clipped += ((np.abs(plain) > limits) & np.isfinite(plain)).sum(axis=1)

    @property
    def sqnr(self) -> Array:
        """``10 log10(signal / noise)`` of each channel; infinite where there is no error."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = 10 * np.log10(self.signal / self.noise)
        return np.where(self.noise == 0, np.inf, ratio)


class TensorNumbers:
    """Those of a subject: as a whole, and by channel where all items have the same channels."""

    def __init__(self, subject: Subject, items: int, tensors: int) -> None:
        self.subject = subject
        self._items, self._tensors = items, 2 * tensors  # as a whole, and by channel
        self.whole = Numbers(1, items, self._tensors)
        self.channels: Numbers | None = None
        self._varies = False

    def add(self, plain: Array, calibrated: Array) -> None:
        """The arrays of one item."""
        axis = channel_axis(self.subject, plain.ndim)
        rows, others = by_channel(plain, axis), by_channel(calibrated, axis)
        limits = self._limits(len(rows))
        flat = None if limits is None else np.broadcast_to(limits, rows.shape).reshape(1, -1)
        self.whole.add(rows.reshape(1, -1), others.reshape(1, -1), flat)
        if self.channels is None and not self._varies:
            self.channels = Numbers(len(rows), self._items, self._tensors)
        if self.channels is not None and self.channels.clipped.size != len(rows):
            self.channels, self._varies = None, True
        if self.channels is not None:
            self.channels.add(rows, others, limits)

    def _limits(self, channels: int) -> Array | None:
        if self.subject.item is None:
            return None
        thresholds = self.subject.item.thresholds.reshape(-1, 1)
        return thresholds if thresholds.size in (1, channels) else thresholds.max(keepdims=True)

    def thresholds(self) -> list[float] | None:
        """One for each channel."""
        if self.channels is None:
            return None
        count = self.channels.clipped.size
        limits = self._limits(count)
        return None if limits is None else np.broadcast_to(limits, (count, 1)).ravel().tolist()

    def rows(self) -> Iterator[TensorRow]:
        """The row of the tensor, then those of its channels."""
        yield from _table(self.subject, self.whole, by_channels=False)
        if self.channels is not None:
            yield from _table(self.subject, self.channels, by_channels=True)


def _table(subject: Subject, held: Numbers, *, by_channels: bool) -> Iterator[TensorRow]:
    values, item = held.values, subject.item
    quantiles = values.quantiles(_SHARES)
    for index, count in enumerate(values.count.tolist()):
        some = max(count, 1)
        p0_1, p1, p25, p50, p75, p99, p99_9 = quantiles[index].tolist()
        yield TensorRow(
            node=subject.name,
            kind=subject.kind,
            tensor=subject.tensor,
            channel=index if by_channels else None,
            values=count,
            not_finite=int(values.lost[index]),
            min=float(values.least[index]),
            max=float(values.most[index]),
            mean=float(values.mean[index]),
            std=float(values.deviation[index]),
            p0_1=p0_1,
            p1=p1,
            p25=p25,
            p50=p50,
            p75=p75,
            p99=p99,
            p99_9=p99_9,
            zeros=int(values.zeros[index]) / some,
            bits=None if item is None else item.bits,
            threshold=None if item is None else _of(item.thresholds, index, by_channels),
            scale=None if item is None else _of(item.scales, index, by_channels),
            clipped=None if item is None else int(held.clipped[index]) / some,
            mse=float(held.noise[index]) / some,
            sqnr=float(held.sqnr[index]),
            max_error=float(held.max_error[index]),
        )


def _of(numbers: Array, index: int, by_channels: bool) -> float:
    return float(numbers[index] if by_channels and numbers.size > 1 else numbers.max())


def as_csv(rows: Sequence[TensorRow]) -> str:
    """The rows with a head; what is not there is empty, numbers have nine digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(TensorRow))
    for row in rows:
        writer.writerow(f"{v:.9g}" if isinstance(v, float) else v for v in asdict(row).values())
    return text.getvalue()


def error_name(subject: Subject) -> str:
    """What the SQNR of a subject is of."""
    return "SQNR, output (dB)" if subject.kind == ORDINARY else "SQNR, grid (dB)"
