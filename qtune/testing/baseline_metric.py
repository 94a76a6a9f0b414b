"""Numbers against their baseline: which way is worse, how much worse is allowed."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction

from qtune.errors import ArgumentError
from qtune.testing.baseline_file import Number

_UNITS = ("_db", "_steps")
_BOUNDS = ("min_", "max_")
_BETTER = {True: "higher", False: "lower"}
_WORSE = {"max_drop": "higher", "max_rise": "lower"}
_DIGITS, _ALL_DIGITS = 6, 17

Exact = Fraction | float
"""A number as it is written in decimal; a float only where it is infinite."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a number may differ from its baseline.

    ``max_drop`` and ``max_rise``: how far it may lie below or above, in its own unit. Otherwise it
    may be ``atol + rtol * abs(baseline)`` worse, 0 if neither is given; ``direction`` says what is
    worse (``both``: any change). ``equal_nan``: NaN is the baseline of NaN. Numbers count as they
    are written: 51.4 lies 0.3 below 51.7, which it does not quite in binary.
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

    def bounds(self, baseline: Number) -> tuple[Exact, Exact]:
        """The lowest and the highest value allowed; infinite where there is none."""
        start, room = exact(baseline), self._room(baseline)
        drop = math.inf if self.direction == "lower" else room
        rise = math.inf if self.direction == "higher" else room
        drop = drop if self.max_drop is None else exact(self.max_drop)
        rise = rise if self.max_rise is None else exact(self.max_rise)
        # inf - inf is no bound
        low = -math.inf if drop == math.inf else start - drop
        high = math.inf if rise == math.inf else start + rise
        return low, high

    def _room(self, baseline: Number) -> Exact:
        """What is allowed without ``max_drop`` and ``max_rise``; an infinity equals only itself."""
        atol, rtol = exact(self.atol or 0), exact(self.rtol or 0)
        if not math.isfinite(baseline):
            return atol
        return math.inf if rtol == math.inf else atol + rtol * exact(abs(baseline))

    def holds(self, value: Number, baseline: Number) -> bool:
        """Whether ``value`` is allowed. NaN is, only as the baseline of NaN with ``equal_nan``."""
        if math.isnan(value) or math.isnan(baseline):
            return self.equal_nan and math.isnan(value) and math.isnan(baseline)
        low, high = self.bounds(baseline)
        return low <= exact(value) <= high

    def limit(self, baseline: Number, digits: int = _DIGITS) -> str:
        """The bounds as text."""
        if math.isnan(baseline):
            return "nan" if self.equal_nan else "no NaN"
        low, high = (number_text(_number(bound), digits) for bound in self.bounds(baseline))
        if low == high:
            return low
        parts = [f">= {low}"] if low != "-inf" else []
        parts += [f"<= {high}"] if high != "inf" else []
        return " and ".join(parts) or "any number"

    def texts(self, value: Number, baseline: Number) -> tuple[str, str, str]:
        """Value, limit and baseline: six digits, or as many more as it takes until numbers that
        differ look so, and a value that breaks its limit too."""
        digits = _DIGITS
        if not (math.isnan(value) or math.isnan(baseline)):
            enough = (d for d in range(_DIGITS, _ALL_DIGITS) if self._tells(value, baseline, d))
            digits = next(enough, _ALL_DIGITS)
        got, stored = number_text(value, digits), number_text(baseline, digits)
        return got, self.limit(baseline, digits), stored

    def _tells(self, value: Number, baseline: Number, digits: int) -> bool:
        """Whether texts of so many digits say what the numbers themselves do."""
        numbers = (*self.bounds(baseline), value, baseline)
        texts = (number_text(_number(number), digits) for number in numbers)
        low, high, got, stored = (exact(float(text)) for text in texts)
        holds, equal = self.holds(value, baseline), exact(value) == exact(baseline)
        return (low <= got <= high) == holds and (got == stored) == equal


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
    _check_flag(name, "higher_is_better", higher_is_better)
    _check_flag(name, "equal_nan", equal_nan)
    one_sided = [_WORSE[key] for key in _WORSE if given[key] is not None]
    if higher_is_better is not None:  # asked first: the registry loads torch
        direction = _BETTER[higher_is_better]
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
    return Rule(direction, max_drop, max_rise, rtol, atol, equal_nan)


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


def number_text(value: Number, digits: int = _DIGITS) -> str:
    """``digits`` digits; whole numbers below 1e15, and integers, with all of theirs."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) < 1e15):
        return str(int(value)) if value or math.copysign(1.0, value) > 0 else "-0.0"
    return str(value) if digits >= _ALL_DIGITS else f"{value:.{digits}g}"


def exact(value: Number) -> Exact:
    """A number as it is written: 0.3, not the binary fraction beside it."""
    return Fraction(str(value)) if math.isfinite(value) else float(value)


def fits(value: Number) -> bool:
    """Whether a float is as large; integers of Python may be larger."""
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _number(value: Exact | Number) -> Number:
    whole = isinstance(value, Fraction) and value.denominator == 1
    return int(value) if whole or isinstance(value, int) else float(value)


def _check_tolerance(name: str, key: str, value: object) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= 0 or not fits(value):  # type: ignore[operator,arg-type]
        raise ArgumentError(
            f"baseline of {name!r}: {key} must be a number from 0 but got {value!r}"
        )


def _check_flag(name: str, key: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(f"baseline of {name!r}: {key} must be a bool but got {value!r}")
