"""What tests of pictures share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qtune.onnx_debug import pictures_sheet


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures that would be written, in their order; no file is."""
    seen: list[Any] = []

    def keep(figure: Any, path: Any) -> Path:
        seen.append(figure)
        return Path(path)

    monkeypatch.setattr(pictures_sheet, "save", keep)
    return seen


@pytest.fixture
def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures that were written, in their order."""
    seen: list[Any] = []
    save = pictures_sheet.save

    def keep(figure: Any, path: Any) -> Path:
        seen.append(figure)
        return save(figure, path)

    monkeypatch.setattr(pictures_sheet, "save", keep)
    return seen


@pytest.fixture
def empty_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are empty files, which is faster, where a test asks for their names only."""

    def write(_: Any, path: Path, **__: Any) -> None:
        path.write_bytes(b"")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", write)
