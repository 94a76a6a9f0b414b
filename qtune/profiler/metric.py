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

from qtune.errors import ArgumentError, kind_of
from qtune.profiler import sum_formulas as formulas
from qtune.profiler.record import duplicated

SCOPES = ("pertensor", "all")
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """A registered metric.

    ``ascending``: larger is better (COSINE, SQNR). ``scope``: ``"pertensor"`` gets two tensors,
    ``"all"`` the two whole output structures; complex tensors as real ones with one more dimension.
    ``function`` is what was registered; calling the
    metric checks shapes and returns a plain number. ``decibels``: values are ``10 log10`` of a
    ratio of signal to noise, so that their differences don't compare.
    """

    name: str
    ascending: bool
    scope: str
    function: Callable[[Any, Any], Any]
    decibels: bool = False

    def __call__(self, baseline: Any, other: Any) -> float | None:
        """Return the distance as a float, ``None`` if there is nothing to compare.

        Raises ``ArgumentError`` with the metric's name where its function returns no number; what
        the function itself raises comes through, with the name as a note.
        """
        if self.scope == "pertensor":
            _check_shapes(self.name, baseline, other)
            if baseline.numel() == 0:
                return None
            baseline, other = _real(baseline), _real(other)
        if not self.is_built_in:  # one of the user's may work in place
            baseline, other = duplicated(baseline), duplicated(other)
        try:
            value = self.function(baseline, other)
        except Exception as error:
            error.add_note(f"raised by the metric {self.name!r}")
            raise
        return number_of(value, f"metric {self.name!r}")

    @property
    def is_built_in(self) -> bool:
        """Whether it comes with qtune."""
        return getattr(self.function, "__module__", None) == __name__

    def badness(self, value: float | None) -> float:
        """Sort key: larger is worse; NaN is the worst of all, n/a the last."""
        if value is None:
            return -math.inf
        if math.isnan(value):
            return math.inf
        return -value if self.ascending else value

    def __str__(self) -> str:
        return self.name


def number_of(value: Any, where: str) -> float:
    """The one real number that a user's function returned; ``ArgumentError`` for anything else.

    A number of Python or NumPy, or a tensor or array of one element.
    """
    got = kind_of(value)
    if isinstance(value, (Tensor, np.ndarray)):
        got = f"{got} of shape {tuple(value.shape)} and dtype {value.dtype}"
        value = value.item() if math.prod(value.shape) == 1 else None
    if isinstance(value, (int, float, np.integer, np.floating)):
        return float(value)
    raise ArgumentError(f"{where}: expected one real number but got {got}; return a float")


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
        name: str, ascending: bool, scope: str, *, decibels: bool = False
    ) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
        """Decorator that registers ``metric(output1, output2)`` under ``name``.

        ``output1`` belongs to the baseline model. The name must be new. ``ascending``: larger is
        better. ``scope``: ``pertensor`` or ``all`` (the whole outputs). ``decibels``: the values
        are ``10 log10(signal / noise)`` (a PSNR); gains of sensitivity tables are then those of
        ``noise / signal``. The metric gets copies.
        """
        if not isinstance(name, str) or not name or hasattr(type, name):
            raise ArgumentError(f"a metric's name is a text of its own, got {name!r}")
        if name in _registry or name in vars(Metric):
            raise ArgumentError(
                f"a metric called {name!r} is registered already; choose a new name"
            )
        if scope not in SCOPES:
            raise ArgumentError(f"metric {name!r}: expected scope in {SCOPES} but got {scope!r}")
        if not isinstance(ascending, bool):
            raise ArgumentError(f"metric {name!r}: expected a bool but got ascending={ascending!r}")

        def decorate(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            if not callable(function):
                raise ArgumentError(f"metric {name!r}: expected a function, got {function!r}")
            _registry[name] = MetricInfo(name, ascending, scope, function, decibels)
            return function

        return decorate

    @staticmethod
    def get_metric(name: str | MetricInfo) -> MetricInfo:
        """The metric of that name (or the metric itself)."""
        if isinstance(name, MetricInfo):
            return name
        if not isinstance(name, str):
            own = next((known for known, info in _registry.items() if info.function is name), "")
            raise ArgumentError(
                f"a metric is given by its name or as Metric.<name>, got {name!r}"
                + (f"; this function is registered as {own!r}" if own else "")
            )
        if name not in _registry:
            raise ArgumentError(f"no metric {name!r}; registered: {', '.join(sorted(_registry))}")
        return _registry[name]

    @staticmethod
    def unregister(name: str) -> None:
        """Forget one of the user's (for tests and notebooks that register it again).

        Raises ``ArgumentError`` for a built-in; a name that is not registered is no error.
        """
        if name in _registry and _registry[name].is_built_in:
            raise ArgumentError(f"metric {name!r} is built in; only your own can be unregistered")
        _registry.pop(name, None)


_registry: dict[str, MetricInfo] = {}


def metric_of_old_name(name: str | MetricInfo) -> MetricInfo:
    """As ``Metric.get_metric``; also the older tools' spellings (``Cosine``, ``Atol``, ``mse``)."""
    if isinstance(name, str) and name not in _registry and name.upper() in _registry:
        return _registry[name.upper()]
    return Metric.get_metric(name)


def _wide(value: Tensor) -> Tensor:
    """A float64 copy in one row, which may be overwritten."""
    row = value.detach().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    return row.view(-1)


def _on_difference(a: Tensor, b: Tensor, reduce: Callable[[Tensor], Tensor]) -> float:
    """``reduce(a - b)``; it may overwrite what it gets. Elements that are equal differ by 0."""
    other = b.detach().reshape(-1)
    if other.dtype == torch.bool:  # torch does not subtract truth values
        other = other.double()
    value = float(reduce(_wide(a).sub_(other)))
    if math.isnan(value):  # inf - inf is NaN although both sides agree
        difference = _wide(a)
        equal = difference == other
        value = float(reduce(difference.sub_(other).masked_fill_(equal, 0.0)))
    return value


def _largest(difference: Tensor) -> Tensor:
    low, high = difference.aminmax()
    return torch.maximum(low.abs(), high.abs())


def _energy(row: Tensor) -> Tensor:
    return row @ row


@Metric.register("ATOL", False, "pertensor")
def atol(a: Tensor, b: Tensor) -> float:
    """``max(abs(a - b))``."""
    return _on_difference(a, b, _largest)


@Metric.register("L1", False, "pertensor")
def l1(a: Tensor, b: Tensor) -> float:
    """``mean(abs(a - b))``."""
    return formulas.mean(a.numel(), _on_difference(a, b, lambda d: d.abs_().sum()))


@Metric.register("MSE", False, "pertensor")
def mse(a: Tensor, b: Tensor) -> float:
    """``mean((a - b) ** 2)``."""
    return formulas.mean(a.numel(), _on_difference(a, b, _energy))


@Metric.register("COSINE", True, "pertensor")
def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the flattened tensors; 1 for equal ones, 0 for all-zero against non-zero."""
    x, y = _wide(a), _wide(b)
    value = formulas.cosine(a.numel(), float(x @ y), float(x @ x), float(y @ y))
    if value is not None:
        return value
    if torch.equal(a, b):
        return 1.0
    tops = float(_largest(x)), float(_largest(y))
    if not all(map(math.isfinite, tops)):
        return math.nan
    if 0.0 in tops:
        return 0.0
    x, y = x.div_(tops[0]), y.div_(tops[1])  # squares of float64 leave its range
    return float(x @ y) / math.sqrt(float(x @ x)) / math.sqrt(float(y @ y))


@Metric.register("SQNR", True, "pertensor", decibels=True)
def sqnr(a: Tensor, b: Tensor) -> float:
    """``10 log10(sum(a ** 2) / sum((a - b) ** 2))`` in dB; +inf for equal tensors."""
    noise, signal = _on_difference(a, b, _energy), float(_energy(_wide(a)))
    value = formulas.sqnr(a.numel(), signal, noise)
    return _extreme_sqnr(a, b) if value is None else value


def _extreme_sqnr(a: Tensor, b: Tensor) -> float:
    """SQNR where a sum is 0 or leaves the range of float64, or the data are not finite."""
    x, y = _wide(a), _wide(b)
    shared = x.isinf() & (x == y)  # an infinity that both sides share is neither noise nor signal
    x, y = x.masked_fill_(shared, 0.0), y.masked_fill_(shared, 0.0)
    if torch.equal(x, y):
        return math.inf
    top = max(float(_largest(x)), float(_largest(y)))
    if math.isnan(top) or bool(x.isnan().any() | y.isnan().any() | x.isinf().any()):
        return math.nan
    if not bool(x.any()) or math.isinf(top):
        return -math.inf
    x, y = x.div_(top), y.div_(top)
    noise, signal = float(_energy(y.sub_(x))), float(_energy(x))
    if noise == 0 or signal == 0:  # smaller than float64 can square
        return math.inf if noise <= signal else -math.inf
    return 10 * (math.log10(signal) - math.log10(noise))


@Metric.register("RTOL", False, "pertensor")
def rtol(a: Tensor, b: Tensor) -> float:
    """``max(abs(a - b) / abs(a))``; float32's maximum where only the baseline is 0."""
    size = _wide(a).abs_()

    def largest_ratio(difference: Tensor) -> Tensor:
        equal = difference == 0
        ratio = difference.abs_().div_(size).masked_fill_(equal, 0.0)
        return ratio.clamp_(max=_FLOAT32_MAX).max()

    return _on_difference(a, b, largest_ratio)


@Metric.register("KL", False, "pertensor")
def kl(a: Tensor, b: Tensor) -> float:
    """``kl_div(log_softmax(b, d), softmax(a, d), "mean")``, d = 1, or 0 below two dimensions.

    What has probability 0 in the baseline (a masked logit, -inf) adds 0.
    """
    if torch.equal(a, b):
        return 0.0
    dim = 1 if a.dim() > 1 else 0
    log_a, log_b = (torch.log_softmax(side.detach().double(), dim) for side in (a, b))
    share = log_a.exp()
    value = float((share * (log_a - log_b)).mean())
    if math.isnan(value):
        terms = torch.where(share == 0, 0.0, share * (log_a - log_b))
        value = float(terms.mean())
    return value
