"""The debugger's metrics (onnx_debugger, parameter ``metrics``) in float64.

``a`` is the float side.

==================  =============================================================  ======
name                formula                                                        better
==================  =============================================================  ======
cosine-similarity   ``a . b / (|a| |b|)``                                          larger
mse                 ``mean((a - b) ** 2)``                                         less
mre                 ``mean(|a - b| / max(|a|, mean(|a|) / 1000))``                 less
sqnr                ``10 log10(sum(a ** 2) / sum((a - b) ** 2))`` in dB            larger
chebyshev           ``max(|a - b|)``                                               less
==================  =============================================================  ======

The document gives names only. The relative error needs the floor: where the float output is 0 (a
ReLU's, half of the time) it has no value, and near 0 single elements would outweigh all others.
Equal tensors are perfect (1, 0, 0, +inf, 0), all-zero ones too; all-zero against anything else
gives 0, its energy, +inf, -inf and its peak. NaN on either side gives NaN, which counts as the
worst of all;
an infinity that both sides share is equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch

from qtune.errors import ArgumentError
from qtune.profiler.metric import Metric, MetricInfo

Array = np.ndarray[Any, Any]

DEFAULT = "cosine-similarity"
_FLOOR = 1e-3  # of the mean magnitude
_NUMBERS = "biufc"


def _mre(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double().reshape(-1), b.double().reshape(-1)
    differs = a != b
    if not bool(differs.any()):
        return 0.0
    shared = a.isinf() & ~differs
    size = a.abs().masked_fill(shared, 0.0)
    floor = float(size.sum()) / max(1, a.numel() - int(shared.sum())) * _FLOOR
    if not math.isfinite(floor) or bool(b[~shared].isinf().any() | b.isnan().any()):
        return math.nan
    if floor == 0.0:
        return math.inf
    error = (a - b).abs().masked_fill(~differs, 0.0)
    return float((error / size.clamp_(min=floor)).mean())


@dataclass(frozen=True, slots=True)
class OnnxMetric:
    """A metric by the debugger's name. ``is_similarity``: larger is better."""

    name: str
    info: MetricInfo
    perfect: float

    @property
    def is_similarity(self) -> bool:
        """Whether larger is better."""
        return self.info.ascending

    def value(self, plain: Array, other: Array) -> float | None:
        """The value for two arrays of one shape; ``None`` for empty ones."""
        return self.info(_tensor(plain), _tensor(other))

    def badness(self, value: float) -> float:
        """Sort key: larger is worse, NaN the worst."""
        return self.info.badness(value)

    def worst(self, plain: Mapping[str, Array], other: Mapping[str, Array]) -> float:
        """The worst value over tensors of the same names; the perfect one if all are empty."""
        values = [self.value(plain[name], other[name]) for name in plain]
        known = [value for value in values if value is not None]
        return max(known, key=self.badness, default=self.perfect)

    def mean(self, values: Iterable[float]) -> float:
        """The mean over data items or nodes; NaN if one is NaN.

        An infinite similarity, the SQNR of equal tensors, is left out where there are others: one
        item without an error would hide all that the others have.
        """
        listed = list(values)
        if self.is_similarity:
            listed = [value for value in listed if value != math.inf] or listed
        return sum(listed) / len(listed)


def is_comparable(dtype: np.dtype[Any]) -> bool:
    """Whether a tensor of ``dtype`` holds numbers or truth values."""
    return dtype.kind in _NUMBERS


def _tensor(array: Array) -> torch.Tensor:
    if not is_comparable(array.dtype):
        raise ArgumentError(f"a tensor of dtype {array.dtype} can't be compared by numbers")
    wide = array.astype(np.int64) if array.dtype.kind == "u" and array.itemsize > 1 else array
    return torch.from_numpy(wide if wide.flags.writeable else wide.copy())


def _of(name: str, function: Callable[[Any, Any], float]) -> MetricInfo:
    return MetricInfo(name, False, "pertensor", function)


METRICS: Mapping[str, OnnxMetric] = {
    metric.name: metric
    for metric in (
        OnnxMetric(DEFAULT, Metric.get_metric("COSINE"), 1.0),
        OnnxMetric("mse", Metric.get_metric("MSE"), 0.0),
        OnnxMetric("mre", _of("mre", _mre), 0.0),
        OnnxMetric("sqnr", Metric.get_metric("SQNR"), math.inf),
        OnnxMetric("chebyshev", Metric.get_metric("ATOL"), 0.0),
    )
}
"""The five documented ones."""


def metric(name: Any, argument: str = "metric") -> OnnxMetric:
    """The metric ``name``; ``ArgumentError`` in the name of ``argument`` for another."""
    if isinstance(name, str) and name in METRICS:
        return METRICS[name]
    near = get_close_matches(str(name), METRICS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ArgumentError(f"{argument}: expected one of {', '.join(METRICS)}; got {name!r}{hint}")


def metrics(names: Any, argument: str = "metrics") -> list[OnnxMetric]:
    """The metrics of one name or of a list, each once."""
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, Sequence) or not listed:
        raise ArgumentError(
            f"{argument}: expected the name of a metric or a list of names; got {names!r}"
        )
    return list(dict.fromkeys(metric(name, argument) for name in listed))
