"""Where the commands keep what they build: the user's cache folder, not the working folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from qtune.testing.store import DirectoryStore

VARIABLE = "QTUNE_CACHE_DIR"
_FOLDER = Path("qtune", "artefacts")


def folder() -> Path:
    """``$QTUNE_CACHE_DIR``, else ``qtune/artefacts`` where the system keeps caches of the user."""
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else _of_user() / _FOLDER


def _of_user() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def store(*, keeps: bool) -> DirectoryStore | None:
    """The store of artefacts by content, as that of the pytest plugin; ``None``: keeps nothing."""
    return DirectoryStore(folder()) if keeps else None


def counts(used: DirectoryStore | None) -> str:
    """What a run built and read, in words; empty where nothing is kept."""
    if used is None:
        return ""
    return f"artefacts: {len(used.built)} built, {len(used.found)} read from {used.folder}"
