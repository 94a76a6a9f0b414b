"""Numbers against their baseline: which way is worse, how much worse is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qtune.errors import ArgumentError
from qtune.testing.baseline_file import Number

_UNITS = ("_db", "_steps")
_BOUNDS = ("min_", "max_")
_BETTER = {True: "higher", False: "lower"}
_WORSE = {"max_drop": "higher", "max_rise": "lower"}


@dataclass(frozen=True, slots=True)
class Rule:
    """How a number may differ from its baseline.

    ``max_drop`` and ``max_rise``: how far it may lie below or above, in its own unit. Otherwise it
    may be ``atol + rtol * abs(baseline)`` worse, 0 if neither is given; ``direction`` says what is
    worse (``both``: any change). ``equal_nan``: NaN is the baseline of NaN.
    """

    direction: str
    max_drop: float | None = None
    max_rise: float | None = None
    rtol: float | None = None
    atol: float | None = None
    equal_nan: bool = False

    @property
    def tolerance(self) -> dict[str, float]:
        """What was given, by argument."""
        names = ("max_drop", "max_rise", "rtol", "atol")
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}

    def bounds(self, baseline: Number) -> tuple[Number, Number]:
        """The lowest and the highest value allowed; infinite where there is none."""
        drop, rise = self.max_drop, self.max_rise
        if drop is None:
            drop = math.inf if self.direction == "lower" else self._room(baseline)
        if rise is None:
            rise = math.inf if self.direction == "higher" else self._room(baseline)
        # inf - inf is no bound; integers stay exact, floats above 2**53 have gaps
        low = -math.inf if math.isinf(drop) else baseline - _whole(drop)
        high = math.inf if math.isinf(rise) else baseline + _whole(rise)
        return low, high

    def _room(self, baseline: Number) -> float:
        """What is allowed without ``max_drop`` and ``max_rise``; an infinity equals only itself."""
        relative = (self.rtol or 0.0) * abs(baseline) if math.isfinite(baseline) else 0.0
        return (self.atol or 0.0) + relative

    def holds(self, value: Number, baseline: Number) -> bool:
        """Whether ``value`` is allowed. NaN is, only as the baseline of NaN with ``equal_nan``."""
        if math.isnan(value) or math.isnan(baseline):
            return self.equal_nan and math.isnan(value) and math.isnan(baseline)
        low, high = self.bounds(baseline)
        return low <= value <= high

    def limit(self, baseline: Number) -> str:
        """The bounds as text."""
        if math.isnan(baseline):
            return "nan" if self.equal_nan else "no NaN"
        low, high = self.bounds(baseline)
        if low == high:
            return number_text(low)
        parts = [f">= {number_text(low)}"] if low > -math.inf else []
        parts += [f"<= {number_text(high)}"] if high < math.inf else []
        return " and ".join(parts) or "any number"


def rule_of(
    name: str,
    *,
    max_drop: float | None = None,
    max_rise: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    higher_is_better: bool | None = None,
    equal_nan: bool = False,
) -> Rule:
    """The rule for the number ``name``.

    What is better: ``higher_is_better``, else what the registry of metrics says about ``name``
    (``sqnr_db`` is SQNR), else: only ``max_drop`` given: higher, only ``max_rise``: lower, else
    neither. Raises ``ArgumentError`` for a tolerance that is no number from 0, and where the only
    one given bounds the harmless side.
    """
    given = {"max_drop": max_drop, "max_rise": max_rise, "rtol": rtol, "atol": atol}
    for key, bound in given.items():
        _check_tolerance(name, key, bound)
    one_sided = [_WORSE[key] for key in _WORSE if given[key] is not None]
    if higher_is_better is not None:  # asked first: the registry loads torch
        direction = _BETTER[bool(higher_is_better)]
    else:
        direction = known_direction(name) or (one_sided[0] if len(one_sided) == 1 else "both")
    if len(one_sided) == 1 and direction not in ("both", one_sided[0]):
        wrong, right = (
            ("max_drop", "max_rise") if direction == "lower" else ("max_rise", "max_drop")
        )
        raise ArgumentError(
            f"baseline of {name!r}: {direction} is better, so {wrong} bounds nothing that harms; "
            f"give {right}, or higher_is_better={direction == 'lower'} if that is wrong"
        )
    return Rule(direction, max_drop, max_rise, rtol, atol, bool(equal_nan))


def known_direction(name: str) -> str:
    """``higher`` or ``lower`` for a metric of the registry, ``""`` for any other name.

    ``sqnr_db``, ``min_cosine`` and the like are the metric in them.
    """
    from qtune.profiler.metric import metric_of_old_name  # loads torch

    plain = name
    for prefix in _BOUNDS:
        plain = plain.removeprefix(prefix)
    for unit in _UNITS:
        plain = plain.removesuffix(unit)
    try:
        return _BETTER[metric_of_old_name(plain).ascending]
    except ArgumentError:
        return ""


def number_text(value: Number) -> str:
    """Six digits; all of them where six say something else than the number's own size."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) < 1e15):
        return str(int(value)) if value or math.copysign(1.0, value) > 0 else "-0.0"
    return f"{value:.6g}"


def different_texts(value: Number, baseline: Number) -> tuple[str, str]:
    """Texts of both that differ where they do."""
    short = number_text(value), number_text(baseline)
    if short[0] != short[1] or value == baseline:
        return short
    return repr(value), repr(baseline)


def _whole(value: float) -> Number:
    return int(value) if value == int(value) else value


def _check_tolerance(name: str, key: str, value: object) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= 0:  # type: ignore[operator]
        raise ArgumentError(
            f"baseline of {name!r}: {key} must be a number from 0 but got {value!r}"
        )
