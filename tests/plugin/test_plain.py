"""Values that cross a process boundary (case A35)."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_qtune.plain import json_ready, to_plain


class Color(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: np.float32
    y: Path


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([2.0]), 2.0),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([7]), 7),
        (Color.RED, 1),
        (Path("a/b"), "a/b"),
        ({3, 1}, [1, 3]),
        (("a", None, True), ["a", None, True]),
        ({"k": Point(np.float32(1), Path("p"))}, {"k": {"x": 1.0, "y": "p"}}),
    ],
)
def test_plain_values(value: object, expected: object) -> None:
    plain = to_plain(value)
    assert plain == expected
    assert type(plain) is type(expected)


def test_nan_stays_a_float_and_becomes_a_string_for_json() -> None:
    assert math.isnan(to_plain(np.float32("nan")))  # type: ignore[arg-type]
    assert json_ready([math.nan, -math.inf, 1.0]) == ["NaN", "-Infinity", 1.0]


def test_what_cannot_be_mapped_is_named() -> None:
    with pytest.raises(TypeError, match=r"result\['w'\]\[0\] is a torch.Tensor"):
        to_plain({"w": [torch.zeros(3)]}, "result")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_odd_values_do_not_kill_a_worker(pytester: pytest.Pytester, workers: str) -> None:
    """A35: a NumPy scalar in the results of a test under xdist."""
    pytester.makepyfile(
        """
        import enum, math, pathlib
        import numpy as np
        import torch
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_odd():
            values = {"np": np.float32(1.5), "torch": torch.tensor(2.5), "path": pathlib.Path("x"),
                      "set": {1}, "nan": math.nan, "inf": math.inf}
            conclude(AssertionResult("c", "m", True, "x", "1", "2", values))

        def test_unmappable():
            conclude(AssertionResult("c", "m", True, "x", "1", "2", {"t": object()}))

        def test_other():
            pass
        """
    )
    result = pytester.runpytest("-n", workers, "--qtune-json=q.json")
    text = result.stdout.str()
    assert "1.5" in (pytester.path / "q.json").read_text()
    assert "can't be sent to the controller" in text
    assert "2 passed" in text
