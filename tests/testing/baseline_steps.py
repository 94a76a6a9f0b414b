"""What a test of baselines does: store a value, compare another with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtune.testing.baseline import Baseline

KEY = "TestNet.test_head[nash-e]"


def store(path: Path, name: str, value: Any, **arguments: Any) -> None:
    baseline = Baseline(path, KEY, update="all")
    assert baseline.check(name, value, **arguments).ok
    baseline.save()


def status(path: Path, name: str, value: Any, **arguments: Any) -> str:
    """The status of a check; that it raises where the status is a bad one."""
    baseline = Baseline(path, KEY)
    try:
        ok = baseline.check(name, value, **arguments).ok
    except AssertionError as error:
        ok = error.qtune_result.ok  # type: ignore[attr-defined]
        assert not ok
    found = baseline.comparisons[-1].status
    assert ok == (found in ("equal", "within"))
    return found


def failure(check: Callable[[], Any]) -> str:
    with pytest.raises(AssertionError) as error:
        check()
    return str(error.value)
