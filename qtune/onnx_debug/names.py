"""Unique names, by the rule of the import: nodes of a calibrated model and of its HBIR join."""

from __future__ import annotations

import re

from qtune.hbir.onnx_import.names import free_name, with_unique_names

__all__ = ["file_stem", "free_name", "with_unique_names"]

_LONGEST = 120  # characters of a file's name


def file_stem(name: str, taken: set[str]) -> str:
    """``name`` as a file's, unique among ``taken``, to which it is added.

    The letters that every file system takes, the last ones of a long name. Names that differ in
    case alone are one file on some systems.
    """
    stem = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[-_LONGEST:].strip("._-") or "node"
    number = 0
    found = stem
    while found.lower() in taken:
        number += 1
        found = f"{stem}_{number}"
    taken.add(found.lower())
    return found
