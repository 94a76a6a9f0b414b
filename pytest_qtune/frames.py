"""Shorter tracebacks: a user's mistake is shown at the user's line, not inside the library."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

_STDLIB = sysconfig.get_path("stdlib")
_INSTALLED = ("site-packages", "dist-packages")


def shorten(config: pytest.Config, excinfo: pytest.ExceptionInfo[BaseException] | None) -> None:
    """Leave out the frames of qtune, and what it calls of installed packages.

    Only of errors that qtune raises on purpose; ``--full-trace`` and ``--tb=native`` show all.
    """
    if excinfo is None or not _is_ours(excinfo.value) or _wants_all(config):
        return
    inside = False
    kept = []
    folders = _folders()
    for entry in excinfo.traceback:
        path = str(entry.path)
        ours = path.startswith(folders)
        inside = inside or ours
        if not (ours or (inside and _is_installed(path))):
            kept.append(entry)
    if kept:
        excinfo.traceback = type(excinfo.traceback)(kept)


def _is_ours(error: BaseException) -> bool:
    """An error of ``qtune.errors``, or a failed assertion of ``qtune.testing``."""
    errors: Any = sys.modules.get("qtune.errors")  # not loaded: then it can't be one
    if errors is not None and isinstance(error, errors.QtuneError):
        return True
    return isinstance(error, AssertionError) and hasattr(error, "qtune_result")


def _wants_all(config: pytest.Config) -> bool:
    return bool(config.getoption("fulltrace", False)) or config.getoption("tbstyle") == "native"


def _folders() -> tuple[str, ...]:
    """The folders of both packages, with a separator at the end."""
    packages = (sys.modules[name] for name in ("qtune", "pytest_qtune") if name in sys.modules)
    return tuple(str(Path(str(package.__file__)).parent / "_")[:-1] for package in packages)


def _is_installed(path: str) -> bool:
    return path.startswith(_STDLIB) or any(part in path for part in _INSTALLED)
