"""Distances between two outputs, and the registry through which users add their own.

All built-in metrics compute on float64 (numerics.md section 5). ``a`` is the baseline. They return
a ``float``; ``None`` for empty tensors ("n/a", ranked last); NaN only where the input holds NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtune.errors import ArgumentError

SCOPES = ("pertensor", "all")
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """A registered metric.

    ``ascending``: larger is better (COSINE, SQNR). ``scope``: ``"pertensor"`` gets two tensors,
    ``"all"`` the two whole output structures; complex tensors as real ones with one more dimension.
    ``function`` is what was registered; calling the
    metric checks shapes and returns a plain number.
    """

    name: str
    ascending: bool
    scope: str
    function: Callable[[Any, Any], Any]

    def __call__(self, baseline: Any, other: Any) -> float | None:
        """Return the distance as a float, ``None`` if there is nothing to compare."""
        if self.scope == "pertensor":
            _check_shapes(self.name, baseline, other)
            if baseline.numel() == 0:
                return None
            baseline, other = _real(baseline), _real(other)
        value = self.function(baseline, other)
        return float(value.detach()) if isinstance(value, Tensor) else float(value)

    def badness(self, value: float | None) -> float:
        """Sort key: larger is worse; NaN is the worst of all, n/a the last."""
        if value is None:
            return -math.inf
        if math.isnan(value):
            return math.inf
        return -value if self.ascending else value

    def __str__(self) -> str:
        return self.name


def _real(value: Tensor) -> Tensor:
    return torch.view_as_real(value) if value.is_complex() else value


def _check_shapes(name: str, baseline: Any, other: Any) -> None:
    for side, value in (("baseline", baseline), ("other", other)):
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"{name}: expected a tensor as {side} but got {type(value).__name__}"
            )
    if baseline.shape != other.shape:
        raise ArgumentError(
            f"{name}: the two sides have different shapes, {tuple(baseline.shape)} and "
            f"{tuple(other.shape)}; compare outputs of the same input"
        )


class _MetricAccess(type):
    """Gives ``Metric.ATOL`` and ``Metric.<registered name>``."""

    def __getattr__(cls, name: str) -> MetricInfo:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return Metric.get_metric(name)
        except ArgumentError as error:
            raise AttributeError(str(error)) from None


class Metric(metaclass=_MetricAccess):
    """The registry of metrics: ``Metric.ATOL``, ``Metric.register``, ``Metric.get_metric``."""

    @staticmethod
    def register(
        name: str, ascending: bool, scope: str
    ) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
        """Decorator that registers ``metric(output1, output2)`` under ``name``.

        ``output1`` belongs to the baseline model. The name must be new.
        """
        if name in _registry:
            raise ArgumentError(
                f"a metric called {name!r} is registered already; choose a new name"
            )
        if scope not in SCOPES:
            raise ArgumentError(f"metric {name!r}: expected scope in {SCOPES} but got {scope!r}")
        if not isinstance(ascending, bool):
            raise ArgumentError(f"metric {name!r}: expected a bool but got ascending={ascending!r}")

        def decorate(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            _registry[name] = MetricInfo(name, ascending, scope, function)
            return function

        return decorate

    @staticmethod
    def get_metric(name: str | MetricInfo) -> MetricInfo:
        """The metric of that name (or the metric itself)."""
        if isinstance(name, MetricInfo):
            return name
        if name not in _registry:
            raise ArgumentError(f"no metric {name!r}; registered: {', '.join(sorted(_registry))}")
        return _registry[name]

    @staticmethod
    def unregister(name: str) -> None:
        """Forget a metric (for tests and notebooks that register one again)."""
        _registry.pop(name, None)


_registry: dict[str, MetricInfo] = {}


def _difference(a: Tensor, b: Tensor) -> Tensor:
    # inf - inf is NaN although both sides agree: equal elements differ by 0
    return torch.where(a == b, torch.zeros((), dtype=torch.float64), a.double() - b.double())


@Metric.register("ATOL", False, "pertensor")
def atol(a: Tensor, b: Tensor) -> float:
    """``max(abs(a - b))``."""
    return float(_difference(a, b).abs().max())


@Metric.register("L1", False, "pertensor")
def l1(a: Tensor, b: Tensor) -> float:
    """``mean(abs(a - b))``."""
    return float(_difference(a, b).abs().mean())


@Metric.register("MSE", False, "pertensor")
def mse(a: Tensor, b: Tensor) -> float:
    """``mean((a - b) ** 2)``."""
    return float(_difference(a, b).square().mean())


@Metric.register("COSINE", True, "pertensor")
def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the flattened tensors; 1 for equal ones, 0 for all-zero against non-zero."""
    if torch.equal(a, b):
        return 1.0
    x, y = a.double().flatten(), b.double().flatten()
    norms = float(x.norm() * y.norm())
    return float(x @ y) / norms if norms else 0.0


@Metric.register("SQNR", True, "pertensor")
def sqnr(a: Tensor, b: Tensor) -> float:
    """``10 log10(sum(a ** 2) / sum((a - b) ** 2))`` in dB; +inf for equal tensors."""
    noise = float(_difference(a, b).square().sum())
    # an infinity that both sides share is neither noise nor signal
    shared = a.isinf() & (a == b) if a.is_floating_point() else torch.zeros((), dtype=torch.bool)
    signal = float(a.double().masked_fill(shared, 0.0).square().sum())
    if noise == 0:
        return math.inf
    if math.isnan(noise) or math.isinf(noise) and math.isinf(signal):
        return math.nan
    if signal == 0 or math.isinf(noise):
        return -math.inf
    return 10 * math.log10(signal / noise)


@Metric.register("RTOL", False, "pertensor")
def rtol(a: Tensor, b: Tensor) -> float:
    """``max(abs(a - b) / abs(a))``; float32's maximum where only the baseline is 0."""
    difference, size = _difference(a, b).abs(), a.double().abs()
    ratio = torch.where(difference == 0, 0.0, difference / size)
    return float(ratio.clamp(max=_FLOAT32_MAX).max())


@Metric.register("KL", False, "pertensor")
def kl(a: Tensor, b: Tensor) -> float:
    """``kl_div(log_softmax(b, d), softmax(a, d), "mean")``, d = 1, or 0 below two dimensions."""
    if torch.equal(a, b):
        return 0.0
    dim = 1 if a.dim() > 1 else 0
    log_b = torch.log_softmax(b.double(), dim)
    softmax_a = torch.softmax(a.double(), dim)
    return float(torch.nn.functional.kl_div(log_b, softmax_a, reduction="none").mean())
