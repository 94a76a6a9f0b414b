"""Where built artefacts are kept: one folder per content hash, shared by processes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from filelock import FileLock

from qtune.report.files import remove_remains, write_text, write_with

T = TypeVar("T")
_log = logging.getLogger("qtune.store")
_KEY_DIGITS = 24
_KEPT_S = 30 * 24 * 3600
"""Seconds for which artefacts stay that nobody asks for."""
_OLD = ".old."


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
    artefact that fails it, or can't be loaded, is built again. Where the folder can't be written
    (no permission, no space) what was built is given, and the log says why it is not kept. Keys
    that nobody asked for in 30 days are removed when something new is kept. ``built`` and
    ``found`` list the ``<key>/<name>`` that this object built and read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.built: list[str] = []
        self.found: list[str] = []
        self._tidy = False

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
        """Return the artefact, building it under its lock if no sound one lies there.

        An ``OSError`` or ``RuntimeError`` of ``save`` is logged, whatever ``build`` raises is
        raised.
        """
        path = self.path(key, name)
        with _locked(path) as writable:
            if path.exists():
                found = _load(path, load)
                if found is not None:
                    self.found.append(f"{key}/{name}")
                    return found
            made = build()
            self.built.append(f"{key}/{name}")
            if writable:
                self._keep(path, made, save)
            return made

    def _keep(self, path: Path, made: T, save: Callable[[T, Path], object]) -> None:
        try:
            remove_remains(path)  # nobody else writes while we hold the lock
            write_with(path, lambda partial: save(made, partial))
            write_text(_checksum_path(path), _checksum(path))
        except (OSError, RuntimeError) as error:  # torch.save makes the latter of a full disk
            _log.warning("%s is not kept (%s): the next run builds it again", path, error)
        if not self._tidy:  # once per process: only what writes can make the folder grow
            self._tidy = True
            _remove_unused(self.folder)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock of one artefact; yield whether there is one, that is, a folder to write to."""
    lock = FileLock(str(path) + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.utime(path.parent)  # it is in use: see _remove_unused
        lock.acquire()
    except OSError as error:
        _log.warning("%s can't be written (%s): nothing is kept in it", path.parent, error)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def _load(path: Path, load: Callable[[Path], T]) -> T | None:
    try:
        checksum = _checksum_path(path)
        if not checksum.exists() or checksum.read_text() != _checksum(path):
            _log.warning("%s is damaged (its checksum differs); it is built again", path)
            return None
        return load(path)
    except Exception as error:  # noqa: BLE001 - whatever a damaged file raises: build it again
        _log.warning("%s can't be read (%s); it is built again", path, error)
        return None


def _remove_unused(folder: Path) -> None:
    """Remove keys that no process asked for in a long time, each at once: a reader finds all of it
    or nothing."""
    oldest = time.time() - _KEPT_S
    with suppress(OSError):  # another process removes them too
        for key in list(folder.iterdir()):
            if key.is_dir() and key.stat().st_mtime < oldest:
                remove_folder(key)


def remove_folder(folder: Path) -> None:
    """Remove a folder that other processes may be using: it vanishes at once, as a whole."""
    aside = folder.with_name(_OLD + secrets.token_hex(4))
    with suppress(OSError):  # it is gone, or can't be removed
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def content_key(parts: dict[str, object]) -> str:
    """A short hash of everything an artefact depends on."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def _checksum(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def _checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
