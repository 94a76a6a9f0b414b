"""Pages with commands: the files and commands of each, in order, give the output it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from .page_session import PageSession

DOCS = Path(__file__).resolve().parents[2] / "docs"
SESSIONS = {"getting-started.md": 7, "how-to/tune-a-model.md": 8}
"""Page, and how many commands it has at least."""


@pytest.mark.parametrize("name", SESSIONS)
def test_every_step_gives_the_output_of_the_page(
    name: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = PageSession(pytester, monkeypatch).play(DOCS / name)
    assert len(played) >= SESSIONS[name]
