"""The record of results: what is kept apart goes to its own list, and the rest is as before."""

from __future__ import annotations

import pytest

from qtune.testing import assert_close
from qtune.testing.record import drain, kept_apart


@pytest.fixture(autouse=True)
def empty() -> None:
    drain()


def test_results_kept_apart_leave_the_record_as_it_was() -> None:
    assert_close(1, 1, name="before")
    with kept_apart() as found:
        assert_close(1, 1, name="inside")
        assert_close(1, 2, name="bad")
        assert_close(1, 1, name="never")
    assert [result.model for result in found] == ["inside", "bad"]
    assert [result.model for result in drain()] == ["before"]
    assert drain() == []


def test_an_assertion_of_the_users_own_comes_through() -> None:
    with pytest.raises(AssertionError, match="mine"), kept_apart():
        raise AssertionError("mine")
