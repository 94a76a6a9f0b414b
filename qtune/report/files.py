"""How every output file is written: whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qtune.errors import ArgumentError

_PRIVATE, _MODE = 0o600, 0o644  # while it is written, and then: reports are for everybody


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it into place if the block succeeds.

    A killed or failing writer leaves the old file, or none; never half of one.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # the suffix stays: some writers look at it; the name is known before the file is there, so that
    # Ctrl-C leaves none
    partial = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.part{target.suffix}")
    try:
        partial.touch(mode=_PRIVATE, exist_ok=False)
        yield partial
        partial.chmod(_MODE)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_remains(path: Path) -> None:
    """Delete what a killed writer of ``path`` left; for who holds the only right to write there."""
    for partial in path.parent.glob(f".{glob.escape(path.stem)}.*.part{path.suffix}"):
        partial.unlink(missing_ok=True)


def check_folder(
    folder: str | os.PathLike[str], where: str, error: type[Exception] = ArgumentError
) -> None:
    """Raise ``error`` if no files can be written into ``folder``; nothing is made.

    ``where``: the caller and its argument. To be asked before anything takes long.
    """
    if not isinstance(folder, (str, os.PathLike)) or not str(folder) or "\0" in str(folder):
        raise error(f"{where}: expected the path of a folder, such as '.'; got {folder!r}")
    path = Path(folder).absolute()
    try:
        nearest = next(place for place in (path, *path.parents) if place.exists())
    except OSError as problem:  # a name that is too long
        raise error(f"{where}: {folder} can't be a folder: {problem.strerror}") from None
    if not nearest.is_dir():
        raise error(f"{where}: {folder} can't be a folder, {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise error(f"{where}: {folder} can't be written, no permission in {nearest}")


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` (UTF-8) atomically; return the path."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return Path(path)


def write_with(path: str | os.PathLike[str], writer: Callable[[Path], object]) -> Path:
    """Let ``writer`` write to a temporary path, then rename; return the path."""
    with atomic_path(path) as partial:
        writer(partial)
    return Path(path)
