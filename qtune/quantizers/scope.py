"""One forward of a model, as its fake-quantizes see it.

Inside :func:`forward_scope` all calls of one fake-quantize are one batch to its observer, and
those that never saw data are collected, so that the error at the end lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from qtune.errors import NotCalibratedError

_current: ContextVar[ForwardScope | None] = ContextVar("qtune_forward_scope", default=None)

_IN_FIRST_LINE = 5
"""Most names in the first line of the error."""


@dataclass(slots=True)
class ForwardScope:
    """``unobserved``: names met without data. ``memory``: what observers keep for this forward."""

    unobserved: list[str] = field(default_factory=list)
    memory: dict[Any, Any] = field(default_factory=dict)


def current_scope() -> ForwardScope | None:
    """The scope of the running forward, ``None`` outside of one."""
    return _current.get()


@contextmanager
def forward_scope() -> Iterator[ForwardScope]:
    """Run one forward of a prepared model; a scope inside another is that other one.

    Raises ``NotCalibratedError`` at its end if a fake-quantize was reached that never saw data.
    """
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    scope = ForwardScope()
    try:
        _current.set(scope)  # in here, as Ctrl-C may come right behind it
        yield scope
    finally:
        _current.set(None)
    if scope.unobserved:
        raise not_calibrated(scope.unobserved)


def not_calibrated(names: Sequence[str]) -> NotCalibratedError:
    """The error for fake-quantizes that were asked to quantize and never saw data."""
    advice = (
        "Call set_fake_quantize(model, FakeQuantState.CALIBRATION), run calibration data through "
        "the prepared model itself (not through the float model), then set VALIDATION; or load the "
        "state of a calibrated model."
    )
    return NotCalibratedError(uncalibrated_text("", list(dict.fromkeys(names)), advice))


def uncalibrated_text(where: str, names: Sequence[str], advice: str) -> str:
    """The message about ``names``: advice and the first few in one line, then all of them."""
    more = len(names) - _IN_FIRST_LINE
    shown = ", ".join(names[:_IN_FIRST_LINE]) + (f" and {more} more" if more > 0 else "")
    text = f"{where}nothing is calibrated for: {shown}. "
    text += f"They never saw enough data and have no scale. {advice}"
    return text if more <= 0 else "\n".join([f"{text} All of them:", *(f"  {n}" for n in names)])
