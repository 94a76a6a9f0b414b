"""Gates ``vs baseline``: missing, created, within, worse, stale, unused, kept; who may write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GATE = "sqnr_db >= -0.5 vs baseline"
ID = "qtune-gate::net[sqnr_db]"


@pytest.fixture(autouse=True)
def at_a_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def measure(project: pytest.Pytester, value: float, ok: bool = True, march: str = "nash-e") -> None:
    """A test of the model net with this number, and one of another model."""
    project.makepyfile(
        test_net=f"""
        from qtune.testing.record import conclude
        from qtune.testing.result import AssertionResult

        def test_net():
            facts = {{"march": {march!r}, "torch": "2.13"}}
            numbers = {{"sqnr_db": {value}}}
            conclude(AssertionResult("c", "net", {ok}, "x", "1", "2", numbers, provenance=facts))

        def test_tail():
            conclude(AssertionResult("c", "tail", True, "x", "1", "2", {{"cpu_ops": 0}}))
        """
    )


def run(project: pytest.Pytester, *args: str, gates: str = GATE) -> tuple[dict[str, Any], Any]:
    """The gate's entry, and the row of its baseline."""
    project.runpytest(
        "--qtune", "--qtune-json=q.json", *(f"--qtune-gates={g}" for g in gates.split(";")), *args
    )
    data = json.loads((project.path / "q.json").read_text())
    (gate,) = [gate for gate in data["gates"] if gate["nodeid"] == ID]
    rows = {row["name"]: row for row in data["baselines"]}
    return gate, rows.get("min_sqnr_db")


def stored(project: pytest.Pytester) -> Path:
    return project.path / "__qtune__" / "gates.json"


def test_missing_baseline_fails_and_says_how_to_store_it(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    gate, row = run(project)
    assert gate["outcome"] == "failed"
    assert "no baseline in __qtune__/gates.json" in gate["message"]
    assert "--qtune-update=new" in gate["message"]
    assert row["status"] == "missing"
    assert not stored(project).exists()


def test_workflow_of_a_baseline(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    gate, row = run(project, "--qtune-update=new")
    assert (gate["outcome"], row["status"]) == ("passed", "created")
    entry = json.loads(stored(project).read_text())["entries"]["net"]["min_sqnr_db"]
    assert (entry["value"], entry["direction"]) == (31.25, "higher")
    assert entry["identity"] == {"march": "nash-e"}

    gate, row = run(project)
    assert (gate["outcome"], row["status"]) == ("passed", "equal")
    assert (gate["value"], gate["baseline"]) == (31.25, 31.25)

    measure(project, 31.0)
    gate, row = run(project)
    assert (gate["outcome"], row["status"]) == ("passed", "within")

    measure(project, 30.5)
    gate, row = run(project)
    assert (gate["outcome"], row["status"]) == ("failed", "changed")
    assert "got 30.5, baseline 31.25, difference -0.75, limit >= -0.5" in gate["message"]
    gate, row = run(project, "--qtune-update=new")
    assert (gate["outcome"], row["status"]) == ("failed", "kept")

    gate, row = run(project, "--qtune-update=all")
    assert (gate["outcome"], row["status"]) == ("passed", "updated")
    assert run(project)[1]["status"] == "equal"


def test_update_of_a_glob_writes_what_it_fits(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    assert run(project, "--qtune-update=tail*")[1]["status"] == "missing"
    assert run(project, "--qtune-update=net::*sqnr*")[1]["status"] == "created"


def test_update_is_refused_in_ci(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(project, 31.25)
    monkeypatch.setenv("CI", "true")
    result = project.runpytest("--qtune", "--qtune-update", f"--qtune-gates={GATE}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not stored(project).exists()
    assert run(project, "--qtune-update", "--qtune-update-in-ci")[1]["status"] == "created"


def test_baseline_of_another_march_is_stale(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    run(project, "--qtune-update")
    measure(project, 31.25, march="nash-m")
    gate, row = run(project)
    assert (gate["outcome"], row["status"]) == ("failed", "stale")
    assert "stale baseline: march was nash-e, is now nash-m" in gate["message"]


def test_partial_run_compares_and_writes_nothing(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    gate, row = run(project, "--qtune-update", "-k", "test_net")
    assert (gate["outcome"], row["status"]) == ("skipped", "missing")
    assert row["note"] == "not written: partial run: -k"
    run(project, "--qtune-update")
    measure(project, 29.0)
    gate, row = run(project, "--qtune-update", "-k", "test_net")
    assert (gate["outcome"], row["status"]) == ("failed", "kept")
    assert "31.25" in stored(project).read_text()


def test_number_of_a_failed_test_is_not_stored(project: pytest.Pytester) -> None:
    measure(project, 31.25, ok=False)
    gate, row = run(project, "--qtune-update")
    assert (gate["outcome"], row["status"]) == ("failed", "missing")
    assert row["note"] == "not written: its test did not pass"


def test_nan_is_not_stored(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    run(project, "--qtune-update")
    text = stored(project).read_text()
    (project.path / "test_net.py").write_text(
        (project.path / "test_net.py").read_text().replace("31.25", "float('nan')")
    )
    gate, row = run(project, "--qtune-update")
    assert (gate["outcome"], row["status"]) == ("failed", "kept")
    assert stored(project).read_text() == text


def test_entry_that_no_gate_asks_for_is_listed_and_removed_by_an_update_of_all(
    project: pytest.Pytester,
) -> None:
    measure(project, 31.25)
    more = f"{GATE};cpu_ops == 0 vs baseline"
    run(project, "--qtune-update", gates=more)
    result = project.runpytest("--qtune", f"--qtune-gates={GATE}")
    result.stdout.fnmatch_lines(
        ["baselines: 1 equal, 1 unused", "*unused tail::max_cpu_ops in __qtune__/gates.json"]
    )
    run(project, "--qtune-update=new")
    assert "cpu_ops" in stored(project).read_text()
    run(project, "--qtune-update=all")
    assert "cpu_ops" not in stored(project).read_text()


def test_damaged_file_fails_its_gates_and_no_other(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    stored(project).parent.mkdir()
    stored(project).write_text("{")
    result = project.runpytest("--qtune", f"--qtune-gates={GATE}", "--qtune-gates=cpu_ops==0")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["FAILED qtune-gate::net?sqnr_db? - *"])
    assert "is no JSON" in result.stdout.str()


def test_workers_and_no_workers_write_the_same(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    run(project, "--qtune-update")
    text = stored(project).read_text()
    stored(project).unlink()
    run(project, "--qtune-update", "-n2")
    assert stored(project).read_text() == text


def test_entry_of_a_model_whose_test_failed_before_it_measured_stays(
    project: pytest.Pytester,
) -> None:
    measure(project, 31.25)
    more = f"{GATE};cpu_ops == 0 vs baseline"
    run(project, "--qtune-update", gates=more)
    tests = (project.path / "test_net.py").read_text()
    (project.path / "test_net.py").write_text(
        tests.replace("def test_tail():", "def test_tail():\n    raise OSError('no data')")
    )
    run(project, "--qtune-update=all")
    assert "cpu_ops" in stored(project).read_text()


def test_number_of_a_test_that_failed_at_its_end_is_not_stored(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def end():
            yield
            raise RuntimeError("the device is lost")
        """
    )
    gate, row = run(project, "--qtune-update")
    assert (gate["outcome"], row["note"]) == ("failed", "not written: its test did not pass")


def test_partial_run_removes_no_entry(project: pytest.Pytester) -> None:
    measure(project, 31.25)
    run(project, "--qtune-update", gates=f"{GATE};cpu_ops == 0 vs baseline")
    run(project, "--qtune-update=all", "-k", "test_net")
    assert "cpu_ops" in stored(project).read_text()
