"""What an element may be off: steps of the codes, or an absolute and a relative difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from qtune.errors import ArgumentError, kind_of
from qtune.report.words import counted
from qtune.testing.arguments import check_limit, check_switch
from qtune.testing.elements import Scales
from qtune.testing.limits import shortest


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What an element may be off: ``steps`` codes, or ``atol + rtol * abs(expected)``."""

    steps: float | None = None
    scale: Scales | None = None
    atol: float = 0.0
    rtol: float = 0.0
    equal_nan: bool = False

    def __str__(self) -> str:
        if self.steps is not None:
            return step_text(self.steps)
        named = (("atol", self.atol), ("rtol", self.rtol))
        return " + ".join(f"{name} {shortest(value)}" for name, value in named if value) or "0"


def step_text(steps: float) -> str:
    """``1 step``, ``2 steps``."""
    return counted(steps if isinstance(steps, int) else shortest(steps), "step")


def tolerance_of(
    check: str, steps: Any, scale: Any, axis: Any, atol: Any, rtol: Any, equal_nan: Any
) -> Tolerance:
    """The arguments of ``assert_close`` and the like, checked."""
    given = {
        name: _check_bound(check, name, value)
        for name, value in (("steps", steps), ("atol", atol), ("rtol", rtol))
        if value is not None
    }
    if "steps" in given and len(given) > 1:
        raise ArgumentError(f"{check}: give steps, or atol and rtol, not both")
    check_switch(check, "equal_nan", equal_nan)
    if scale is not None and "steps" not in given:
        raise ArgumentError(f"{check}: scale says what a step is; give steps= too")
    return Tolerance(**given, scale=_scales(check, scale, axis), equal_nan=equal_nan)


def _check_bound(check: str, name: str, value: Any) -> float:
    bound = check_limit(check, name, value)
    if bound < 0:
        raise ArgumentError(f"{check}: {name} must not be negative but got {value!r}")
    return value if isinstance(value, int) else bound  # a float can't hold every code of 64 bits


def _scales(check: str, scale: Any, axis: Any) -> Scales | None:
    """The scale of real values, checked."""
    numbers = _numbers(check, scale)
    if axis is None:
        if len(numbers) > 1:
            raise ArgumentError(
                f"{check}: scale holds {len(numbers)} numbers; say with axis= which dimension "
                "they belong to"
            )
    elif isinstance(axis, bool) or not isinstance(axis, int) or scale is None:
        raise ArgumentError(
            f"{check}: axis is the dimension that each number of scale belongs to; got "
            f"axis={axis!r} with {kind_of(scale)} as scale"
        )
    if not all(0 < number < float("inf") for number in numbers):
        raise ArgumentError(f"{check}: scale must be positive and finite but got {scale!r}")
    return Scales(tuple(numbers), axis) if numbers else None


def _numbers(check: str, scale: Any) -> list[float]:
    if scale is None:
        return []
    try:
        plain = scale.detach().cpu().numpy() if isinstance(scale, Tensor) else scale
        numbers = np.asarray(plain, np.float64).reshape(-1).tolist()
    except (TypeError, ValueError):
        numbers = []
    if not numbers or isinstance(scale, bool | str):
        raise ArgumentError(
            f"{check}: scale must be a number, or one for each channel, but got {scale!r}"
        )
    return numbers
