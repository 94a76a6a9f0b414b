"""Metrics over several pairs of tensors, under the debugger's names; the float side comes first."""

from __future__ import annotations

import math
from collections.abc import Iterable

from qtune.onnx_debug.metrics import METRICS, Array


def score(metric: str, a: Array, b: Array) -> float:
    """``metric`` of one pair of arrays; NaN where there is nothing to compare."""
    value = METRICS[metric].value(a, b)
    return math.nan if value is None else value


def mean_score(metric: str, pairs: Iterable[tuple[Array, Array]]) -> float:
    """The mean of ``metric`` over pairs of float arrays."""
    found = [score(metric, a, b) for a, b in pairs if a.dtype.kind == "f"]
    return METRICS[metric].mean(found) if found else math.nan


def badness(metric: str, value: float) -> float:
    """Larger is worse; NaN is the worst."""
    return METRICS[metric].badness(value)
