"""A35: odd values in the results of a test, with and without worker processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

RECORDING = """
import enum
import math
import pathlib

import numpy as np
import torch

from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def note(name, ok, metrics):
    conclude(AssertionResult(name, "net", ok, "layer", "1", "<= 2", metrics, {"atol": 2.0}))


def test_numbers():
    note(
        "numbers",
        True,
        {
            "np32": np.float32(1.5),
            "np64": np.float64(0.1),
            "int": np.int64(7),
            "bool": np.bool_(True),
            "torch": torch.tensor(2.5),
            "half": torch.tensor(0.5, dtype=torch.half),
            "array": np.array([4.0]),
            "nan": math.nan,
            "inf": np.float32("inf"),
            "-inf": torch.tensor(-math.inf),
        },
    )


def test_objects():
    note(
        "objects",
        True,
        {
            "path": pathlib.Path("a") / "b",
            "enum": Color.RED,
            "level": Level.HIGH,
            "set": {1},
            "bytes": str(b"x"),
            "surrogate": "\\udce9",
            "nested": {"x": [np.float32(0.25), (None, True)]},
        },
    )


def test_failing():
    note("failing", False, {"atol": np.float32(3.5)})


def test_silent():
    pass
"""


@pytest.fixture(autouse=True)
def _lean(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers load only what they need; run files as the user has them."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:html -p no:metadata -p no:hypothesispytest")


def metrics_in(value: Any) -> dict[str, Any]:
    """Metrics by check, wherever they lie in the report."""
    found: dict[str, Any] = {}
    if isinstance(value, dict):
        if "metrics" in value and ("check" in value or "name" in value):
            found[str(value.get("check", value.get("name")))] = value["metrics"]
        for item in value.values():
            found |= metrics_in(item)
    if isinstance(value, list):
        for item in value:
            found |= metrics_in(item)
    return found


def test_values_arrive_from_workers_as_they_do_without(pytester: pytest.Pytester) -> None:
    """A35 an object that xdist can't send kills the worker."""
    pytester.makepyfile(test_net=RECORDING)
    found = {}
    for workers in ("0", "2"):
        result = pytester.runpytest("-n", workers, "--qtune", f"--qtune-json=q{workers}.json")
        text = result.stdout.str() + result.stderr.str()
        assert "INTERNALERROR" not in text
        assert "crashed" not in text
        result.assert_outcomes(passed=3, failed=1)
        assert "qtune: 3 checks on 1 model(s), 1 failed" in text
        found[workers] = metrics_in(json.loads((pytester.path / f"q{workers}.json").read_text()))
    assert found["2"] == found["0"]
    numbers, objects = found["2"]["numbers"], found["2"]["objects"]
    assert numbers == {
        "np32": 1.5,
        "np64": 0.1,
        "int": 7,
        "bool": True,
        "torch": 2.5,
        "half": 0.5,
        "array": 4.0,
        "nan": "NaN",
        "inf": "Infinity",
        "-inf": "-Infinity",
    }
    assert objects == {
        "path": "a/b",
        "enum": "red",
        "level": 3,
        "set": [1],
        "bytes": "b'x'",
        "surrogate": "\\udce9",
        "nested": {"x": [0.25, [None, True]]},
    }
    assert found["2"]["failing"] == {"atol": 3.5}


def test_a_value_that_cannot_be_sent_fails_its_test_alone(pytester: pytest.Pytester) -> None:
    """A35 named, and the other tests of the worker go on."""
    pytester.makepyfile(
        test_net="""
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_object():
            conclude(AssertionResult("c", "net", True, "x", "1", "2", {"thing": object()}))

        def test_after():
            conclude(AssertionResult("c", "net", True, "x", "1", "2", {"thing": 1}))
        """
    )
    for workers in ("0", "2"):
        result = pytester.runpytest("-n", workers, "--qtune")
        text = result.stdout.str()
        assert "INTERNALERROR" not in text
        assert "thing" in text
        assert "can't be sent to the controller" in text
        result.assert_outcomes(passed=1, failed=1)
