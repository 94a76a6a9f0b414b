"""``qtune gate`` and ``qtune init``: gate files without pytest, and a first one for a model."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from qtune.cli.cache import folder as cache_folder
from qtune.cli.first_checks import _cosine_limit, _error_limit, _sqnr_limit, _steps_limit

from ..testing.gatefile import projects
from ..testing.gatefile.projects import EXAMPLE, MODEL
from .conftest import Run

FILE = "resnet.qtune.toml"
INIT = ("init", "my_models:resnet18", "--calibration", "my_data:calib", "--march", "nash-e")
BASELINE = EXAMPLE[EXAMPLE.rindex("[[check]]") :]
CHECKS = """
[[check]]
kind = "consistency"
min_cosine = 1.0
xfail = "int8 is not exact"

[[check]]
kind = "bit_exact"
against = "reference"
skip = "takes long"

[[check]]
kind = "no_unfused"
"""


@pytest.fixture
def gates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the project of the example."""
    monkeypatch.delenv("CI", raising=False)
    projects.write(folder, MODEL + CHECKS)
    return folder


def test_all_checks_hold_but_those_that_the_file_knows_to_fail(gates: Path, run: Run) -> None:
    done = run("gate", FILE)
    assert done.status == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    marks = [words[0] for words in lines if len(words) > 1 and "[" in words[1]]
    assert marks == ["xfail", "skip", "ok"]
    assert done.out.rstrip().endswith("3 checks: 1 xfail, 1 skip, 1 ok")


def test_a_failed_check_is_a_gate_with_its_message(gates: Path, run: Run) -> None:
    (gates / FILE).write_text(MODEL + CHECKS.replace('xfail = "int8 is not exact"\n', ""))
    done = run("gate", FILE, "--json")
    assert done.status == 1
    assert done.json["ok"] is False
    bad = next(gate for gate in done.json["gates"] if not gate["ok"])
    assert bad["gate"] == f"{FILE}:11 consistency[float-quantized_bc]"
    assert 0.9 < bad["value"] < 1
    assert bad["limit"] == ">= 1"
    outcomes = [check["outcome"] for check in done.json["result"]["checks"]]
    assert outcomes == ["FAIL", "skip", "ok"]
    text = run("gate", FILE).out
    assert "resnet.qtune.toml:11: consistency[float-quantized_bc]\nconsistency: output: " in text
    assert "3 checks: 1 FAIL, 1 skip, 1 ok" in text


def test_a_comparison_fails_at_layers_that_are_not_known_to_fail(gates: Path, run: Run) -> None:
    check = '[[check]]\nkind = "consistency"\nmin_cosine = 1.0\nper_layer = true\n'
    (gates / FILE).write_text(f"{MODEL}{check}xfail.conv2 = 'int16 to come'\n")
    assert "1 check: 1 FAIL" in run("gate", FILE).out
    layers = ("_input_0_quant", "relu", "conv2", "_generated_mean_0", "head", "_output_0_dequant")
    known = "".join(f"xfail.{layer} = 'int16 to come'\n" for layer in layers)
    (gates / FILE).write_text(f"{MODEL}{check}{known}")
    done = run("gate", FILE)
    assert (done.status, "1 check: 1 xfail" in done.out) == (0, True), done.out
    (gates / FILE).write_text(f"{MODEL}{check}xfail.conv1 = 'int16 to come'\n")
    done = run("gate", FILE)
    assert "1 check: 1 ERROR" in done.out
    assert "resnet.qtune.toml:14: [[check]] 1 (consistency): xfail: conv1 is fused" in done.out


def test_wrong_files_are_one_line_and_nothing_runs(gates: Path, run: Run) -> None:
    projects.write(gates, MODEL + "[[check]]\nkind = 'no_unfusd'\n", "other.qtune.toml")
    done = run("gate", FILE, "other.qtune.toml")
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("qtune gate: other.qtune.toml:11: [[check]] 1: unknown kind 'no_unf")
    assert run("gate", "none.qtune.toml").err.startswith("qtune gate: none.qtune.toml: No such")


def test_a_check_that_cannot_be_made_stops_no_other_file(gates: Path, run: Run) -> None:
    broken = MODEL.replace(":resnet18", ":broken")
    projects.write(gates, broken + CHECKS.replace('skip = "takes long"\n', ""), "a.qtune.toml")
    done = run("gate", "a.qtune.toml", FILE)
    assert done.status == 1
    assert done.out.rstrip().endswith("6 checks: 3 ERROR, 1 xfail, 1 skip, 1 ok")
    assert done.out.count("factory: my_models:broken raised ValueError: no weights today") == 1
    assert "ERROR  no_unfused[calib] " in done.out
    found = run("gate", "a.qtune.toml", FILE, "--json").json
    assert [gate["ok"] for gate in found["gates"]] == [False, False, False, True, True]
    errors = [check["error"] for check in found["result"]["checks"]]
    assert [bool(error) for error in errors] == [True, True, True, False, False, False]


def test_what_is_built_is_kept_in_the_cache_folder_of_the_user(
    gates: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("QTUNE_CACHE_DIR", str(cache))
    before = sorted(gates.iterdir())
    assert f"artefacts: 3 built, 0 read from {cache}" in run("gate", FILE).out
    assert f"artefacts: 0 built, 2 read from {cache}" in run("gate", FILE).out
    assert "artefacts: " not in run("gate", FILE, "--no-cache").out
    assert sorted(path for path in gates.iterdir() if path.name != "__pycache__") == before
    monkeypatch.delenv("QTUNE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == Path("/somewhere/qtune/artefacts")


def test_baselines_are_written_on_request_only(gates: Path, run: Run) -> None:
    (gates / FILE).write_text(MODEL + BASELINE)
    missing = run("gate", FILE)
    assert missing.status == 1
    assert f"qtune gate {FILE} --update=new" in missing.out
    assert not (gates / "__qtune__").exists()
    written = run("gate", FILE, "--update=new")
    assert written.status == 0, written.out + written.err
    assert "written: __qtune__/resnet.qtune.json" in written.out
    stored = gates / "__qtune__" / "resnet.qtune.json"
    entries = json.loads(stored.read_text())["entries"]["baseline[float-quantized_bc]"]
    assert run("gate", FILE).status == 0
    again = run("gate", FILE, "--update")
    assert (again.status, "written" in again.out) == (0, False)
    assert set(entries) == {"sqnr_db", "top1"}
    (gates / FILE).write_text(MODEL + BASELINE + 'id = "first"\n')
    assert "unused baseline baseline[float-quantized_bc] in __qtune__" in run("gate", FILE).out


def test_nothing_is_written_in_ci_or_into_a_name_by_mistake(
    gates: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gates / FILE).write_text(MODEL + BASELINE)
    assert "--update: it took the file" in run("gate", FILE, "--update", FILE).err
    monkeypatch.setenv("CI", "true")
    refused = run("gate", FILE, "--update=new")
    assert refused.status == 2
    assert "--update-in-ci" in refused.err
    assert run("gate", FILE, "--update=new", "--update-in-ci").status == 0


def test_the_march_is_that_of_the_run_where_the_file_names_none(gates: Path, run: Run) -> None:
    (gates / FILE).write_text(MODEL.replace('march = "nash-e"', "") + CHECKS)
    done = run("gate", FILE)
    assert done.status == 2
    assert "resnet.qtune.toml:2: [model]: no march is given" in done.err
    assert "march: nash-m" in run("gate", FILE, "--march", "nash-m").out


def test_a_first_file_holds_for_the_model_that_it_was_written_for(gates: Path, run: Run) -> None:
    done = run(*INIT, "--inputs", "my_data:holdout", "--evaluate", "my_eval:top1")
    assert done.status == 0, done.err
    assert "next: qtune gate resnet18.qtune.toml or pytest --qtune resnet18" in done.out
    text = (gates / "resnet18.qtune.toml").read_text()
    checks = tomllib.loads(text)["check"]
    assert [check["kind"] for check in checks] == [
        "no_shared_ops",
        "no_unfused",
        "on_bpu",
        "consistency",
        "consistency",
        "consistency",
        "no_saturation",
        "scale_in",
        "qconfig",
        "sensitivity_below",
        "latency_below",
        "accuracy_drop_below",
    ]
    assert all("# measured: " in part for part in text.split("[[check]]")[:12])
    checked = run("gate", "resnet18.qtune.toml")
    assert checked.status == 0, checked.out
    assert "12 checks: 12 ok" in checked.out
    uncommented = "\n".join(line.removeprefix("# ") for line in text.splitlines()[-4:])
    (gates / "more.qtune.toml").write_text(f"{text}\n{uncommented}\n")
    assert run("gate", "more.qtune.toml", "--update=new").status == 0


def test_what_fails_now_is_written_as_known_to_fail(gates: Path, run: Run) -> None:
    words = ["init", "my_models:shared", *INIT[2:], "-o", "first.qtune.toml"]
    assert run(*words).status == 0
    checks = tomllib.loads((gates / "first.qtune.toml").read_text())["check"]
    assert checks[0]["xfail"].startswith("no_shared_ops: conv1: got 2 calls")
    assert run("gate", "first.qtune.toml").status == 0


def test_a_file_is_overwritten_on_request_only(gates: Path, run: Run) -> None:
    before = (gates / FILE).read_text()
    done = run(*INIT, "-o", FILE)
    assert done.status == 2
    assert "resnet.qtune.toml is there already; give --force" in done.err
    assert (gates / FILE).read_text() == before
    assert run(*INIT, "-o", FILE, "--force").status == 0
    assert (gates / FILE).read_text() != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "gates.toml"), "--output: gates.toml must end with .qtune.toml"),
        (("--inputs", "holdout"), "--inputs: expected module:name"),
        (("--evaluate", "my_eval:top2"), "--evaluate: my_eval has no 'top2'; did you mean 'top1'?"),
        (("--qconfig", "none:q"), "--qconfig: no module 'none'"),
    ],
)
def test_wrong_options_are_named(
    gates: Path, run: Run, words: tuple[str, ...], message: str
) -> None:
    done = run(*INIT, *words)
    assert done.status == 2
    assert done.err.startswith(f"qtune init: {message}")
    assert not list(gates.glob("resnet18*"))


def test_a_model_that_cannot_be_made_is_said_at_once(gates: Path, run: Run) -> None:
    done = run("init", "my_models:broken", *INIT[2:])
    assert done.err.startswith("qtune init: MODEL: my_models:broken raised ValueError: no weights")


def test_limits_have_a_margin_that_the_measured_value_keeps() -> None:
    # 1.25 times the distance from 1, 1 dB, 1.25 times the error; to two digits
    assert _cosine_limit(0.9987) == 0.9983
    assert _cosine_limit(1.0) == 0.99999
    assert _cosine_limit(float("nan")) is None
    assert _sqnr_limit(35.757) == 34.5
    assert _sqnr_limit(float("inf")) is None
    assert _error_limit(0.0383) == 0.048
    assert _error_limit(-2.0) == 0.0
    assert _steps_limit(0.0) == 1
    assert _steps_limit(1.5) == 2
