"""The artefact cache: where it lies, how it is cleared, what a run took from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qtune.testing.store import DirectoryStore

FOLDER = "qtune"
OUTPUT = "qtune_cache"
"""Key of xdist's ``workeroutput``."""
STORE = pytest.StashKey["DirectoryStore"]()


def folder(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below pytest's cache; beside the controller's temporary files where that is off."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        try:
            return Path(cache.mkdir(FOLDER))
        except OSError:  # a read-only checkout
            pass
    base = tmp_path_factory.getbasetemp()
    if hasattr(config, "workerinput"):
        base = base.parent  # a worker's own folder lies inside the controller's
    return base / "qtune-artefacts"


def store(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """The one store of this process."""
    from qtune.testing.store import DirectoryStore

    if STORE not in config.stash:
        config.stash[STORE] = DirectoryStore(folder(config, tmp_path_factory))
    return config.stash[STORE]


def clear(config: pytest.Config) -> None:
    """Forget every cached artefact (``--qtune-cache-clear``; on the controller, before workers).

    Another run that uses them now goes on with what it has read.
    """
    cache = getattr(config, "cache", None)
    if cache is not None:
        from qtune.testing.store import remove_folder

        remove_folder(Path(cache.mkdir(FOLDER)))


def counts(config: pytest.Config) -> dict[str, int]:
    """How many artefacts this process built and read; empty if it never asked for one."""
    found = config.stash.get(STORE, None)
    return {} if found is None else {"built": len(found.built), "read": len(found.found)}


def add(total: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the counts of another process."""
    for name, count in more.items():
        total[name] = total.get(name, 0) + count
