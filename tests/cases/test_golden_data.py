"""A34: NaN in golden data, that of a file of baselines and that of an assertion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qtune.testing import assert_close
from qtune.testing.baseline import Baseline

Golden = Callable[..., None]
A = np.array([1.0, np.nan, 3.0])
B = np.array([1.0, 2.0, np.nan])


@pytest.fixture(params=["stored", "given"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    """Whether a value is the golden one, which the file holds or the test gives."""

    def stored(value: Any, expected: Any, **arguments: Any) -> None:
        first = Baseline(tmp_path / "golden.json", "test", update="all")
        first.check("a", expected, equal_nan=True)
        first.save()
        Baseline(tmp_path / "golden.json", "test").check("a", value, **arguments)

    def given(value: Any, expected: Any, **arguments: Any) -> None:
        assert_close(value, expected, **arguments)

    return {"stored": stored, "given": given}[request.param]


def refusal(golden: Golden, value: Any, expected: Any, **arguments: Any) -> str:
    with pytest.raises(AssertionError) as error:
        golden(value, expected, **arguments)
    return str(error.value)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_nan_at_the_same_place_passes_when_asked(golden: Golden, dtype: Any) -> None:
    """A34"""
    golden(A.astype(dtype), A.astype(dtype), equal_nan=True)
    golden(A.astype(dtype), A.copy().astype(dtype), equal_nan=True, atol=0.5)


@pytest.mark.parametrize("arguments", [{}, {"atol": 1e9}, {"rtol": 1e9}], ids=str)
def test_nan_at_the_same_place_fails_by_default(golden: Golden, arguments: Any) -> None:
    """A34"""
    text = refusal(golden, A, A.copy(), **arguments)
    assert "1 of 3 elements" in text
    assert "[1]: " in text
    assert "nan" in text.lower()


@pytest.mark.parametrize("arguments", [{}, {"equal_nan": True}, {"equal_nan": True, "atol": 1e9}])
def test_nan_at_another_place_fails_with_index_and_both_values(
    golden: Golden, arguments: Any
) -> None:
    """A34"""
    text = refusal(golden, B, A, **arguments)
    lines = text.splitlines()
    assert "2 of 3 elements" in text
    assert any("[1]: " in line and " 2" in line and "nan" in line for line in lines)
    assert any("[2]: " in line and "nan" in line and " 3" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "got", "limit"),
    [
        (A.reshape(3, 1), "shape (3, 1)", "shape (3,)"),
        (A.astype(np.float32), "float32", "float64"),
        (A.astype(np.float32).reshape(3, 1), "float32 (3, 1)", "float64 (3,)"),
    ],
)
def test_another_shape_or_dtype_is_said_as_such(
    golden: Golden, value: Any, got: str, limit: str
) -> None:
    """A34"""
    headline = refusal(golden, value, A, equal_nan=True, atol=1e9).splitlines()[0]
    assert f"got {got}, limit {limit}" in headline
