"""For all tests: whatever a test sets of the march, it is as before when the test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qtune import march


@pytest.fixture(autouse=True)
def _march_as_before() -> Iterator[None]:
    # set up before, so torn down after, every fixture that a test names
    before = march._current
    yield
    march._current = before
