"""The published form of ``--qtune-json``: real runs of every shape keep to it."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pytest_qtune.session import SCHEMA
from qtune.testing.baseline import Comparison
from qtune.testing.result import AssertionResult, LayerResult

FORM = json.loads(files("qtune.report").joinpath("schemas/run.schema.json").read_text("utf-8"))
VALID = Draft202012Validator(FORM)
TESTS = """
import pytest
from checks import check
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult, LayerResult

def test_good():
    check(True, sqnr_db=31.5, cosine=0.999)

def test_bad():
    check(False, sqnr_db=float("nan"), atol=float("inf"))

@pytest.mark.xfail
def test_known():
    check(False, sqnr_db=1.0)

def test_expects():
    with pytest.raises(AssertionError):
        check(False)

def test_other():
    raise ValueError("unrelated")

def test_no_check(qtune_stages):
    raise ValueError("before it could assert")

@pytest.mark.parametrize("name", ["\\x1b[31m", "\\ud800", "卷积"])
def test_odd(name):
    facts = {"march": "nash-e", "deep": {"list": [1, None, True, float("inf")]}}
    layers = [LayerResult(name, None, True, float("-inf"))]
    conclude(
        AssertionResult(
            name, name, True, name, "1", "2", {name: None}, {name: 1}, layers, provenance=facts,
            baseline="1.5", artefact="a.bc",
        )
    )
"""


@pytest.fixture
def project(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    project.makepyfile(test_net=TESTS)
    return project


def run(project: pytest.Pytester, *args: str) -> Any:
    result = project.runpytest("--qtune", "--qtune-json=q.json", *args)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    data = json.loads((project.path / "q.json").read_text(encoding="utf-8"))
    faults = [f"{error.json_path}: {error.message}" for error in VALID.iter_errors(data)]
    assert faults == []
    return data


def objects(form: Any) -> Iterator[dict[str, Any]]:
    """Every part of the form that describes an object with named fields."""
    if isinstance(form, dict):
        if isinstance(form.get("properties"), dict):
            yield form
        for part in form.values():
            yield from objects(part)
    elif isinstance(form, list):
        for part in form:
            yield from objects(part)


def test_form_is_a_valid_schema_of_the_version_that_runs_write() -> None:
    Draft202012Validator.check_schema(FORM)
    assert FORM["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert FORM["properties"]["schema"]["const"] == SCHEMA
    assert FORM["$id"].endswith(f":{SCHEMA}")


def test_form_is_strict_and_explains_every_field() -> None:
    found = list(objects(FORM))
    assert len(found) > 10
    for part in found:
        assert part["additionalProperties"] is False
        assert set(part["required"]) == set(part["properties"]) - {"built", "read"}
        for field in part["properties"].values():
            explained = (
                FORM["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else field
            )
            assert field.get("description") or explained["description"]


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("result", {f.name for f in dataclasses.fields(AssertionResult)} | {"headline"}),
        ("layer", {f.name for f in dataclasses.fields(LayerResult)}),
        ("baseline", {"file", *Comparison("k", "n", "equal").to_dict()}),
    ],
)
def test_fields_are_those_of_the_code(part: str, fields: set[str]) -> None:
    assert set(FORM["$defs"][part]["properties"]) == fields


GATES = ("--qtune-gates=cosine>=0.9", "--qtune-gates=sqnr_db>=25", "--qtune-gates=top1>=1",
         "--qtune-gates=cosine>=-1 vs baseline")  # fmt: skip


@pytest.mark.parametrize("workers", ["0", "2"])
def test_run_with_everything_keeps_to_the_form(project: pytest.Pytester, workers: str) -> None:
    project.makepyfile(
        test_stored="""
        def test_stored(qtune_baseline):
            qtune_baseline.check("top1", 0.75, max_drop=0.5, higher_is_better=True)
        """,
    )
    args = ("-n", workers, *GATES)
    first = run(project, *args, "--qtune-update")
    assert {row["status"] for row in first["baselines"]} == {"created"}
    data = run(project, *args)
    assert {row["status"] for row in data["baselines"]} == {"equal"}
    assert {gate["outcome"] for gate in data["gates"]} == {"passed", "failed"}
    assert {test["outcome"] for test in data["tests"]} == {"passed", "failed", "xfailed"}
    by_id = {test["nodeid"]: test for test in data["tests"]}
    (bad,) = by_id["test_net.py::test_bad"]["results"]
    assert bad["metrics"] == {"sqnr_db": "NaN", "atol": "Infinity"}
    assert by_id["test_net.py::test_no_check"]["results"] == []
    assert [other["nodeid"] for other in data["other_failures"]] == ["test_net.py::test_other"]
    homes = {test["nodeid"]: test["process"] for test in data["run"]["tests"]}
    assert set(homes) == set(by_id)
    ids = {process["id"] for process in data["run"]["processes"]}
    assert set(homes.values()) <= ids == ({"main"} if workers == "0" else {"gw0", "gw1"})


def test_all_but_the_part_about_the_run_is_equal_for_equal_runs(project: pytest.Pytester) -> None:
    first, second = (run(project, *GATES, "-n", workers) for workers in ("0", "2"))
    for data in (first, second):
        assert data.pop("run")["seconds"] > 0
        data["settings"].pop("threads")  # the cores shared out among the workers
    assert first == second


def test_threads_of_each_process_are_recorded(project: pytest.Pytester) -> None:
    data = run(project, "--qtune-threads=1", "-n2")
    assert [process["threads"] for process in data["run"]["processes"]] == [1, 1]
    assert not any(process["crashed"] for process in data["run"]["processes"])


def test_crashed_worker_and_broken_file_keep_to_the_form(project: pytest.Pytester) -> None:
    project.makepyfile(test_crash="import os\ndef test_crash(): os._exit(3)")
    data = run(project, "-n2", *GATES)
    assert len(data["crashed_workers"]) == 1
    assert [process["crashed"] for process in data["run"]["processes"]].count(True) == 1
    project.makepyfile(test_crash="import nothing_of_this_name")
    data = run(project, "--continue-on-collection-errors", *GATES)
    assert "test_crash.py" in {other["nodeid"] for other in data["other_failures"]}
    data = run(project, *GATES)  # which stops at once
    assert data["tests"] == []
    assert {gate["outcome"] for gate in data["gates"]} == {"skipped"}


@pytest.mark.parametrize("args", [("-x",), ("-k", "test_odd"), ("--collect-only",)])
def test_partial_runs_keep_to_the_form(project: pytest.Pytester, args: tuple[str, ...]) -> None:
    run(project, *args, *GATES)


def test_run_without_qtune_in_it_keeps_to_the_form(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")
    data = run(pytester)
    assert (data["tests"], data["gates"], data["run"]["tests"]) == ([], [], [])


def test_what_the_form_does_not_name_breaks_it(project: pytest.Pytester) -> None:
    data = run(project, *GATES, "-k", "test_good")
    for path in ((), ("totals",), ("tests", 0), ("tests", 0, "results", 0), ("gates", 0)):
        broken = copy.deepcopy(data)
        place = broken
        for step in path:
            place = place[step]
        place["new_field"] = 1
        assert not VALID.is_valid(broken), path
        del place["new_field"]
        del place[sorted(place)[0]]
        assert not VALID.is_valid(broken), path
