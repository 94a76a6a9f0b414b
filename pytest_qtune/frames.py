"""Shorter tracebacks: a user's mistake is shown at the user's line, not inside the library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

_STDLIB = str(Path(os.__file__).parent)
_INSTALLED = ("site-packages", "dist-packages")


def shorten(config: pytest.Config, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Leave out the frames of qtune, and what it calls of installed packages.

    Only of errors that qtune raises on purpose; ``--full-trace`` and ``--tb=native`` show all.
    """
    if not _is_ours(excinfo.value) or _wants_all(config):
        return
    short = _without_library(excinfo.tb)
    if short is not None:  # the exception keeps the whole one, for debuggers
        excinfo.traceback = type(excinfo.traceback)(short)
    for cause in _causes(excinfo.value):  # pytest reads theirs from the exceptions themselves
        cause.__traceback__ = _without_library(cause.__traceback__) or cause.__traceback__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What led to ``error``, as Python prints it."""
    seen = {id(error)}
    current: BaseException | None = error
    while current is not None:
        suppressed = current.__suppress_context__
        current = current.__cause__ or (None if suppressed else current.__context__)
        if current is None or id(current) in seen:
            return
        seen.add(id(current))
        yield current


def _without_library(whole: TracebackType | None) -> TracebackType | None:
    """A copy of the chain without our frames, and without installed ones behind the first."""
    inside = False
    kept = []
    folders = _folders()
    while whole is not None:
        path = whole.tb_frame.f_code.co_filename
        ours = path.startswith(folders)
        inside = inside or ours
        if not (ours or (inside and _is_installed(path))):
            kept.append(whole)
        whole = whole.tb_next
    short: TracebackType | None = None
    for item in reversed(kept):
        short = TracebackType(short, item.tb_frame, item.tb_lasti, item.tb_lineno)
    return short


def _is_ours(error: BaseException) -> bool:
    """An error of ``qtune.errors``, or a failed assertion of ``qtune.testing``."""
    errors: Any = sys.modules.get("qtune.errors")  # not loaded: then it can't be one
    if errors is not None and isinstance(error, errors.QtuneError):
        return True
    return isinstance(error, AssertionError) and hasattr(error, "qtune_result")


def _wants_all(config: pytest.Config) -> bool:
    return bool(config.getoption("fulltrace", False)) or config.getoption("tbstyle", "") == "native"


def _folders() -> tuple[str, ...]:
    """The folders of both packages, with a separator at the end."""
    packages = (sys.modules[name] for name in ("qtune", "pytest_qtune") if name in sys.modules)
    return tuple(str(Path(str(package.__file__)).parent / "_")[:-1] for package in packages)


def _is_installed(path: str) -> bool:
    return path.startswith(_STDLIB) or any(part in path for part in _INSTALLED)
