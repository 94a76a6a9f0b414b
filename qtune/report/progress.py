"""How long work shows its progress: one bar on standard error, or nothing at all.

A bar is there where standard error is a terminal. ``QTUNE_PROGRESS`` in the environment decides
otherwise: ``off`` shows none, ``on`` shows them on any stream (notebooks, logs). Of several
processes of ``torch.distributed`` the first alone shows bars. Without a bar the loop is the plain
one: tqdm is not called, so there is neither a lock nor a thread of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm import tqdm  # type: ignore[import-untyped]

from qtune.errors import ArgumentError
from qtune.report.processes import is_first_process

VARIABLE = "QTUNE_PROGRESS"
_CHOICES = {"": None, "on": True, "off": False}
_Item = TypeVar("_Item")


class Bar:
    """A bar that may not be there."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    def advance(self, note: str = "") -> None:
        """One more unit is done; ``note`` is shown behind the bar."""
        if self._bar is None:
            return
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update()


def progress(
    items: Iterable[_Item],
    task: str,
    *,
    unit: str,
    total: int | None = None,
    shown: bool | None = None,
) -> Iterator[_Item]:
    """The ``items``, one after the other, with a bar that says how many of ``total`` came.

    ``total``: default the length, where there is one. ``shown``: ``True`` and ``False`` overrule
    terminal and environment, ``None`` asks them, and leaves a loop of one step alone.
    No item is asked for before it is needed; ``items`` is not closed where the loop ends early.
    """
    known = expected_length(items) if total is None else total
    if not is_shown(shown) or (shown is None and known == 1):
        return iter(items)
    return _with_bar(items, task, unit, known)


@contextmanager
def progress_bar(
    total: int | None, task: str, *, unit: str, shown: bool | None = None
) -> Iterator[Bar]:
    """A bar that the block moves itself; arguments as of :func:`progress`."""
    if not is_shown(shown):
        yield Bar()
        return
    with tqdm(total=total, desc=task, unit=unit, file=sys.stderr) as bar:
        yield Bar(bar)


def is_shown(shown: bool | None = None) -> bool:
    """Whether a bar is shown now. Raises ``ArgumentError`` for an unknown ``QTUNE_PROGRESS``."""
    wanted = _wanted() if shown is None else shown
    if wanted is False or sys.stderr is None or not is_first_process():
        return False
    return wanted or sys.stderr.isatty()


def expected_length(items: Iterable[Any], most: int | None = None) -> int | None:
    """How many items will come, at most ``most``; ``None`` where nobody knows."""
    try:
        known = len(items)  # type: ignore[arg-type]
    except TypeError:
        return most
    return known if most is None else min(known, most)


def _with_bar(items: Iterable[_Item], task: str, unit: str, total: int | None) -> Iterator[_Item]:
    with progress_bar(total, task, unit=unit, shown=True) as bar:
        for item in items:
            yield item
            bar.advance()


def _wanted() -> bool | None:
    name = os.environ.get(VARIABLE, "").lower()
    if name not in _CHOICES:
        raise ArgumentError(f"{VARIABLE}: expected on, off or nothing but got {name!r}")
    return _CHOICES[name]
