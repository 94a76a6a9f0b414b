"""How every output file is written: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_MODE = 0o644  # mkstemp makes files private; reports are for everybody


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it into place if the block succeeds.

    A killed or failing writer leaves the old file, or none; never half of one.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # the suffix stays: some writers look at it
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.stem}.", suffix=f".part{target.suffix}"
    )
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(_MODE)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


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
