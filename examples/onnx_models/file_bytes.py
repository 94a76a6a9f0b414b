"""Files that lie beside every Python of this project, as bytes for the file type net."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
HALF, PADDING = 1024, 256
PARTS = 3

KINDS = {
    ".py": {"python"},
    ".h": {"c", "cpp"},
    ".json": {"json"},
    ".csv": {"csv"},
    ".rst": {"rst"},
    ".svg": {"svg"},
    ".png": {"png"},
    ".jpg": {"jpeg"},
    ".ttf": {"ttf"},
    ".gz": {"gzip"},
    ".css": {"css"},
    ".js": {"javascript", "typescript"},
    ".html": {"html"},
    ".proto": {"proto"},
    ".cmake": {"cmake"},
    ".pyx": {"python"},
    ".so": {"elf"},
}
"""What the net may answer for a file of this name."""
_PACKAGES = ("sklearn", "skimage", "matplotlib", "onnx", "torch", "pandas", "numpy")


def features(content: bytes) -> Array:
    """int32 (1, 2048): the first and the last 1,024 bytes without blanks at the ends, padded."""
    first = content[:4096].lstrip()[:HALF]
    last = content[-4096:].rstrip()[-HALF:]
    row = np.full((1, 2 * HALF), PADDING, np.int32)
    row[0, : len(first)] = np.frombuffer(first, np.uint8)
    row[0, 2 * HALF - len(last) :] = np.frombuffer(last, np.uint8)
    return row


def files(per_kind: int, part: int) -> tuple[list[Array], list[set[str]]]:
    """Up to ``per_kind`` files of each kind, (1, 2048) each, and the right answers for each.

    ``part``: 0, 1 or 2; no file is in two parts.
    """
    rng = np.random.default_rng(0)
    found: dict[str, list[Path]] = {ending: [] for ending in KINDS}
    for package in _PACKAGES:
        for file in sorted(_folder(package).rglob("*")):
            if file.suffix in found and file.is_file() and file.stat().st_size > 300:
                found[file.suffix].append(file)
    rows, answers = [], []
    for ending, candidates in found.items():
        for index in rng.permutation(len(candidates))[part::PARTS][:per_kind]:
            rows.append(features(candidates[index].read_bytes()))
            answers.append(KINDS[ending])
    return rows, answers


def some(count: int, part: int) -> tuple[list[Array], list[set[str]]]:
    """``count`` files of a part, all kinds mixed."""
    rows, answers = files(-(-count // len(KINDS)), part)
    order = np.random.default_rng(part).permutation(len(rows))[:count]
    return [rows[i] for i in order], [answers[i] for i in order]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {package} is not installed")
    return Path(spec.origin).parent
