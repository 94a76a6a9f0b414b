"""The cache of ``compile``: programs by the content that they were made from."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from qtune.errors import ArgumentError, HbirError
from qtune.report.files import write_with
from qtune.version import __version__

_log = logging.getLogger(__name__)


def cache_file(
    folder: str | Path, module: bytes, march: str, options: dict[str, Any], suffix: str
) -> Path:
    """Where the program made of these things lies in the cache."""
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise ArgumentError(f"compile: cache_path={str(folder)!r} is a file; give a folder")
    _make(root)
    settings = json.dumps([march, options, __version__], sort_keys=True)
    digest = hashlib.sha256(module + b"\0" + settings.encode()).hexdigest()
    return root / f"{digest}{suffix}"


def _make(root: Path) -> None:
    """Make the folder and write to it, before the work that it is to keep is done."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise ArgumentError(
            f"compile: cache_path={str(root)!r} can't be written to ({error.strerror}); give a "
            "folder that can be made or written, or cache_mode='disable'"
        ) from error


def fetch(cached: Path, target: Path, program: Any) -> Any:
    """Copy a cached program to ``target`` and open it; ``None`` without a sound one."""
    if not cached.is_file():
        return None
    try:
        program(cached)
    except HbirError as error:
        _log.warning("compile: the cached program is damaged and made again: %s", error)
        return None
    data = cached.read_bytes()
    write_with(target, lambda partial: partial.write_bytes(data))
    _log.info("compile: taken from the cache: %s", cached)
    return program(target)


def store(target: Path, cached: Path) -> None:
    """Put a compiled program into the cache."""
    data = target.read_bytes()
    write_with(cached, lambda partial: partial.write_bytes(data))
