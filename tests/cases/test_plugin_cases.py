"""A35: odd values in results, properties and fixtures, with and without worker processes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import qtune.testing

ODD_VALUES = """
import collections
import dataclasses
import datetime
import enum
import math
import pathlib

import numpy as np
import pytest
import torch

from qtune.testing import assert_close
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult


class Color(enum.Enum):
    RED = "red"
    MIXED = ("red", "blue")


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: object
    y: object


def note(check, value, model="net"):
    conclude(AssertionResult(check, model, True, "layer", "1", "<= 2", {"value": value}))


GOOD = {
    "np_float32": np.float32(0.1),
    "np_float64": np.float64(0.1),
    "np_bool": np.bool_(False),
    "np_uint64": np.uint64(2**64 - 1),
    "np_str": np.str_("text"),
    "np_array_of_one": np.array([[7]], np.int16),
    "np_datetime": np.datetime64("2026-01-02T03:04", "ns"),
    "torch_scalar": torch.tensor(2.5, requires_grad=True),
    "torch_half": torch.tensor(0.5, dtype=torch.half),
    "torch_bfloat16": torch.tensor(1.5, dtype=torch.bfloat16),
    "torch_bool": torch.tensor([True]),
    "path": pathlib.PurePosixPath("a/b"),
    "undecodable_path": pathlib.Path("a\\udce9"),
    "enum": Color.RED,
    "enum_of_no_scalar": Color.MIXED,
    "int_enum": Level.HIGH,
    "set": {3, 1, 2},
    "nan": math.nan,
    "inf": np.float32("inf"),
    "minus_inf": -math.inf,
    "minus_zero": -0.0,
    "dataclass": Point(np.float32(0.5), Point(Color.RED, None)),
    "surrogate": "\\ud800 and \\udfff",
    "control": "nul \\x00 bell \\x07 escape \\x1b[31m",
    "huge": 2**1000,
    "date": datetime.date(2026, 1, 2),
    "keys": {1: "int", None: "none", Color.RED: "enum", ("a", 2): "tuple", np.int8(4): "np"},
    "ordered": collections.OrderedDict(b=1, a=[(), {}]),
}


@pytest.mark.parametrize("name", sorted(GOOD))
def test_good(name):
    note(name, GOOD[name])


@pytest.fixture
def measured():
    note("of_setup", np.float32(1.25))
    yield np.float32(2.25)
    note("of_teardown", torch.tensor(3.25))


def test_fixture(measured):
    note("of_fixture", measured)


def test_property(record_property, measured):
    record_property("acc", np.float32(0.25))
    record_property("where", pathlib.Path("a/b"))
    record_property("text\\udce9", "x\\udce9")


def test_real_assertions():
    assert_close(np.zeros(3, np.float32), torch.zeros(3), name="zeros")
    assert_close(np.array([math.nan]), np.array([math.nan]), equal_nan=True, name="nan")


def test_failing():
    assert_close(np.array([1.0, math.nan]), np.array([1.0, math.inf]), name="odd")


@pytest.mark.parametrize("text", ["\\x00", "\\x1b[0m", "\\ud800", "<&>", "\\ufffe"])
def test_odd_names(text):
    note("name", 1, model=f"net {text}")
    conclude(
        AssertionResult(
            f"check{text}", "net", False, f"layer{text}", text, text, {f"metric{text}": math.nan},
            table=f"table {text}", advice=text, artefact=f"/tmp/{text}",
        )
    )
"""
PLAIN = {
    "np_float32": 0.10000000149011612,
    "np_float64": 0.1,
    "np_bool": False,
    "np_uint64": 2**64 - 1,
    "np_str": "text",
    "np_array_of_one": 7,
    "np_datetime": "2026-01-02T03:04:00.000000000",
    "torch_scalar": 2.5,
    "torch_half": 0.5,
    "torch_bfloat16": 1.5,
    "torch_bool": True,
    "path": "a/b",
    "undecodable_path": "a\\udce9",
    "enum": "red",
    "enum_of_no_scalar": "MIXED",
    "int_enum": 3,
    "set": [1, 2, 3],
    "nan": "NaN",
    "inf": "Infinity",
    "minus_inf": "-Infinity",
    "minus_zero": -0.0,
    "dataclass": {"x": 0.5, "y": {"x": "red", "y": None}},
    "surrogate": "\\ud800 and \\udfff",
    "control": "nul \x00 bell \x07 escape \x1b[31m",
    "huge": 2**1000,
    "date": "2026-01-02",
    "keys": {"1": "int", "None": "none", "red": "enum", "('a', 2)": "tuple", "4": "np"},
    "ordered": {"b": 1, "a": [[], {}]},
    "of_setup": 1.25,
    "of_fixture": 2.25,
    "of_teardown": 3.25,
}
BAD_VALUES = """
import threading

import numpy as np
import pytest
import torch

from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult


def note(check, value):
    conclude(AssertionResult(check, "net", True, "layer", "1", "<= 2", {"value": value}))


LOOP = []
LOOP.append(LOOP)
BAD = {
    "tensor": torch.zeros(3),
    "array": np.zeros((2, 2)),
    "empty": np.zeros(0),
    "nested": {"a": [1, (2, torch.ones(2))]},
    "bytes": b"x",
    "complex": 1j,
    "np_complex": np.complex64(1j),
    "object": object(),
    "lock": threading.Lock(),
    "type": dict,
    "function": len,
    "meta": torch.zeros(1, device="meta"),
    "timedelta": np.timedelta64(1, "s"),
    "twins": {1: "a", "1": "b"},
    "digits": 10**5000,
    "loop": LOOP,
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad(name):
    note("before", 1)
    note(name, BAD[name])
    note("after", 2)


@pytest.mark.parametrize("name", ["tensor", "object"])
def test_bad_property(record_property, name):
    record_property("thing", BAD[name])


@pytest.fixture
def closing():
    yield
    note("of_teardown", torch.zeros(5))


def test_bad_in_teardown(closing):
    pass


def test_good_after_all():
    note("good", 3)
"""


@pytest.fixture(scope="module", autouse=True)
def _engine() -> None:
    """Load torch once: a run in this process forgets the modules that it loaded itself."""
    for name in qtune.testing.__all__:
        getattr(qtune.testing, name)


@pytest.fixture(autouse=True)
def _lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers load only what they need."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:html -p no:metadata -p no:hypothesispytest")


class Run:
    """One inner run and the files that it left."""

    def __init__(self, pytester: pytest.Pytester, workers: str) -> None:
        names = [f"{kind}{workers}" for kind in ("q.json", "j.xml", "q.html")]
        json_path, xml_path, html_path = (pytester.path / name for name in names)
        self.result = pytester.runpytest(
            "-n", workers, "--qtune", f"--qtune-json={json_path}", f"--junitxml={xml_path}",
            f"--qtune-html={html_path}",
        )  # fmt: skip
        self.text = self.result.stdout.str() + self.result.stderr.str()
        self.data = json.loads(json_path.read_text(encoding="utf-8"), parse_constant=_refuse)
        self.cases = list(ET.parse(xml_path).getroot().iter("testcase"))
        self.html = html_path.read_text(encoding="utf-8")

    @property
    def outcomes(self) -> dict[str, str]:
        """Outcome by test and phase, as the report has it."""
        return {f"{test['nodeid']} {test['when']}": test["outcome"] for test in self.data["tests"]}

    @property
    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """Metrics by test and phase."""
        return {
            f"{test['nodeid']} {test['when']}": [found["metrics"] for found in test["results"]]
            for test in self.data["tests"]
        }

    @property
    def properties(self) -> dict[str, dict[str, str]]:
        """The properties of each test case in the JUnit file."""
        return {
            str(case.get("name")): {
                str(item.get("name")): str(item.get("value")) for item in case.iter("property")
            }
            for case in self.cases
        }

    def checks(self) -> dict[str, Any]:
        """The one value of each check."""
        return {
            found["check"]: found["metrics"]["value"]
            for test in self.data["tests"]
            for found in test["results"]
            if set(found["metrics"]) == {"value"} and found["check"] != "name"
        }


def _refuse(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def both(pytester: pytest.Pytester, source: str) -> tuple[Run, Run]:
    """The same suite without and with workers."""
    pytester.makepyfile(test_odd=source)
    pytester.makeini("[pytest]\njunit_family = xunit1\n")  # which knows record_property
    return Run(pytester, "0"), Run(pytester, "2")


def check_files(run: Run) -> None:
    """Valid files: they were parsed, so no NaN is in the JSON, no control character in the XML."""
    assert run.properties["test_good[nan]"]["qtune.value"] == "nan"
    assert run.properties["test_property"] == {
        "acc": "0.25",
        "where": "a/b",
        "text\\udce9": "x\\udce9",
        "qtune.0.check": "of_setup",
        "qtune.0.value": "1.25",
        "qtune.1.check": "of_teardown",
        "qtune.1.value": "3.25",
    }
    assert run.properties["test_good[control]"]["qtune.value"] == (
        "nul #x00 bell #x07 escape #x1B[31m"
    )
    failures = [item.text for case in run.cases for item in case.iter("failure")]
    assert len(failures) == 6
    assert not {"\x00", "\x1b"} & set(run.html)
    assert "<&>" not in run.html


def test_odd_values_arrive_as_plain_ones_from_workers_too(pytester: pytest.Pytester) -> None:
    """A35: the counts are asserted, not only the exit status."""
    alone, spread = both(pytester, ODD_VALUES)
    good = len(PLAIN)  # one test for each value but the fixture's three, and three more tests
    for run in (alone, spread):
        assert "INTERNALERROR" not in run.text
        assert "crashed" not in run.text
        run.result.assert_outcomes(passed=good - 3 + 3, failed=6)
        assert run.result.ret == pytest.ExitCode.TESTS_FAILED
        assert len(run.cases) == good + 6
    assert spread.outcomes == alone.outcomes
    assert spread.metrics == alone.metrics
    assert spread.data["totals"] == alone.data["totals"]
    assert spread.properties == alone.properties
    assert spread.checks() == PLAIN
    assert str(spread.checks()["minus_zero"]) == "-0.0"
    check_files(spread)


def test_what_cannot_be_sent_fails_its_own_test_and_names_the_place(
    pytester: pytest.Pytester,
) -> None:
    """A35: the others of its worker go on, and what was found beside it is kept."""
    alone, spread = both(pytester, BAD_VALUES)
    for run in (alone, spread):
        assert "INTERNALERROR" not in run.text
        assert "crashed" not in run.text
        run.result.assert_outcomes(passed=2, failed=18, errors=1)
    assert spread.outcomes == alone.outcomes
    assert spread.metrics == alone.metrics
    assert spread.data["totals"] == alone.data["totals"]
    for expected in (
        "['value'] is a torch.Tensor, which can't be sent to the controller",
        "['value'] is a numpy.ndarray, which",
        "['value']['a'][1][1] is a torch.Tensor, which",
        "['value'] is a builtins.bytes, which",
        "['value'] is a builtins.complex, which",
        "['value'] is a builtins.type, which",
        "['value'] is a numpy.timedelta64, which",
        "['value'] has two keys that are both '1' as text",
        "['value'] is an integer of 16610 bits",
        "is nested too deep, or holds itself",
        "property 'thing' of test_odd.py::test_bad_property[tensor] is a torch.Tensor, which",
    ):
        assert expected in spread.text, expected
        assert expected in alone.text, expected
    assert "result of test_odd.py::test_bad[tensor].metrics['value']" not in spread.text
    kept = [m for name, m in spread.metrics.items() if name == "test_odd.py::test_bad[bytes] call"]
    assert kept == [[{"value": 1}, {"value": 2}]]
    assert Path(pytester.path / "q.json2").exists()
