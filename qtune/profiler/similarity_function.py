"""The similarity functions of the older tools: ``Cosine``, ``MSE``, ``L1``, ``KL``, ``SQNR``, own.

They are the metrics of ``qtune.profiler.Metric`` (numerics.md section 5). One rule differs, as the
plugin guide says: the cosine of a tensor that is all zero is 0, also with another such tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from qtune.errors import ArgumentError
from qtune.profiler.metric import Metric, MetricInfo

SimilarityFunction = str | MetricInfo | Callable[[Tensor, Tensor], Any]
NAMES = ("Cosine", "MSE", "L1", "KL", "SQNR")
THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {"Cosine": 0.99, "MSE": 1.0, "L1": 1.0, "KL": 0.01, "SQNR": 20.0}
)
"""Where a layer is worth a look if the caller gives no threshold; the guide keeps its own quiet."""


@dataclass(frozen=True, slots=True)
class Similarity:
    """``function(a, b)``: a number, ``None`` where two tensors have no distance.

    ``name``: as a title. ``larger_is_better``: ``None`` for a function of the caller's, of which
    that is not known.
    """

    name: str
    function: Callable[[Tensor, Tensor], float | None]
    larger_is_better: bool | None

    def __call__(self, a: Tensor, b: Tensor) -> float | None:
        """The similarity of two tensors of one shape; ``None`` for indices and masks."""
        if not (a.is_floating_point() or a.is_complex()):
            return None
        return self.function(a, b)

    def is_bad(self, value: float | None, threshold: float | None) -> bool:
        """Whether ``value`` is beyond ``threshold`` (``None``: the default of the function)."""
        limit = THRESHOLDS.get(self.name) if threshold is None else threshold
        if value is None or limit is None:
            return False
        return not value >= limit if self.larger_is_better else not value <= limit


def similarity(given: SimilarityFunction, where: str) -> Similarity:
    """The function that ``similarity_func`` stands for: a documented name, a metric, or one's own.

    An own function of two tensors returns a number or a tensor of one element. With a threshold a
    larger value of it counts as worse.
    """
    if isinstance(given, str) and given in NAMES:
        metric = Metric.get_metric(given.upper())
        function = _cosine if given == "Cosine" else metric
        return Similarity(given, function, metric.ascending)
    if isinstance(given, (str, MetricInfo)):
        found = _registered(given)
        if found is None or found.scope != "pertensor":
            raise ArgumentError(
                f"{where}: similarity_func must be one of {', '.join(NAMES)}, a metric of two "
                f"tensors or a function of them, got {given!r}"
            )
        return Similarity(found.name, found, found.ascending)
    if not callable(given):
        raise ArgumentError(f"{where}: similarity_func must be a name or a function, got {given!r}")
    name = getattr(given, "__name__", type(given).__name__)
    return Similarity(name, lambda a, b: _number(given(a.clone(), b.clone()), name, where), None)


def _registered(given: str | MetricInfo) -> MetricInfo | None:
    try:
        return Metric.get_metric(given)
    except ArgumentError:
        return None


def _cosine(a: Tensor, b: Tensor) -> float | None:
    if a.numel() and not (bool(a.any()) and bool(b.any())):
        return 0.0
    return Metric.COSINE(a, b)


def _number(value: Any, name: str, where: str) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ArgumentError(
            f"{where}: {name} must return a number or a tensor of one element, got a tensor of "
            f"shape {tuple(value.shape)}"
        )
    return float(value.detach() if isinstance(value, Tensor) else value)
