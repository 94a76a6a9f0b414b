"""Where built artefacts are kept: one folder per content hash, shared by processes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from filelock import FileLock

from qtune.report.files import write_text, write_with

T = TypeVar("T")
_log = logging.getLogger("qtune.store")
_KEY_DIGITS = 24


class Store(Protocol):
    """Gives back what was built under a key, or builds it."""

    def get(
        self,
        key: str,
        name: str,
        build: Callable[[], T],
        save: Callable[[T, Path], object],
        load: Callable[[Path], T],
    ) -> T:
        """Return the artefact ``name`` of ``key``."""

    def path(self, key: str, name: str) -> Path | None:
        """Where the artefact lies, ``None`` if nowhere on disk."""


class MemoryStore:
    """Keeps nothing between objects: every artefact is built by who asks."""

    def get(
        self,
        key: str,
        name: str,
        build: Callable[[], T],
        save: Callable[[T, Path], object],
        load: Callable[[Path], T],
    ) -> T:
        """Build it."""
        return build()

    def path(self, key: str, name: str) -> Path | None:
        """Nothing lies on disk."""
        return None


class DirectoryStore:
    """``<folder>/<key>/<name>``, with a lock per file
    (building one artefact may ask for another of the same key).

    Files are written under a temporary name and renamed; a checksum lies beside each, and an
    artefact that fails it, or can't be loaded, is built again. ``built`` and ``found`` list the
    ``<key>/<name>`` that this object built and read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.built: list[str] = []
        self.found: list[str] = []

    def path(self, key: str, name: str) -> Path:
        """Where the artefact lies."""
        return self.folder / key / name

    def get(
        self,
        key: str,
        name: str,
        build: Callable[[], T],
        save: Callable[[T, Path], object],
        load: Callable[[Path], T],
    ) -> T:
        """Return the artefact, building it under its lock if no sound one lies there."""
        path = self.path(key, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(path) + ".lock"):
            if path.exists():
                found = self._load(path, load)
                if found is not None:
                    self.found.append(f"{key}/{name}")
                    return found
            _remove_remains(path)
            made = build()
            write_with(path, lambda partial: save(made, partial))
            write_text(_checksum_path(path), _checksum(path))
            self.built.append(f"{key}/{name}")
            return made

    def _load(self, path: Path, load: Callable[[Path], T]) -> T | None:
        checksum = _checksum_path(path)
        try:
            if not checksum.exists() or checksum.read_text() != _checksum(path):
                _log.warning("%s is damaged (its checksum differs); it is built again", path)
                return None
            return load(path)
        except Exception as error:  # noqa: BLE001 - whatever a damaged file raises: build it again
            _log.warning("%s can't be read (%s); it is built again", path, error)
            return None


def content_key(parts: dict[str, object]) -> str:
    """A short hash of everything an artefact depends on."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def _remove_remains(path: Path) -> None:
    """Delete what a killed writer left; nobody else writes while we hold the lock."""
    for partial in path.parent.glob(f".{path.stem}.*.part{path.suffix}"):
        partial.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def _checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
