"""Running checks: stages, inputs, baselines, a pinned artefact, and errors of the user's code."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from qtune.bpu import compiler
from qtune.testing.baseline import Baseline
from qtune.testing.gatefile import GateFileError
from qtune.testing.gatefile.modules import Modules
from qtune.testing.gatefile.run import GateRun
from qtune.testing.record import drain
from qtune.testing.result import AssertionResult

from .conftest import Start
from .projects import EXAMPLE, MODEL

ONE = "[[check]]\nkind = 'consistency'\nmin_cosine = 0.9\n"


def results(run: GateRun, index: int = 0, **rest: object) -> list[AssertionResult]:
    with run.active():
        return run.results(run.file.checks[index], **rest)


def test_a_check_is_the_assertion_on_the_stages_and_nothing_is_recorded(start: Start) -> None:
    drain()
    (found,) = results(start(MODEL + ONE))
    assert found.ok
    assert (found.check, found.model) == ("consistency", "resnet")
    assert 0.9 < found.metrics["cosine"] < 1
    assert drain() == []


def test_a_failed_check_gives_its_result(start: Start) -> None:
    (found,) = results(start(MODEL + ONE.replace("0.9", "1.0")))
    assert not found.ok
    assert found.limit == ">= 1"


def test_per_layer_limits_are_judged_one_by_one(start: Start) -> None:
    text = f"{MODEL}{ONE}max_atol = 0.0\nmax_qscale_diff = 4\nper_layer = true\n"
    run = start(text)
    steps, cosine, atol = results(run)
    assert [r.limits.keys() for r in (steps, cosine, atol)] == [
        {"max_qscale_diff"},
        {"cosine"},
        {"atol"},
    ]
    with run.active():
        found = run.layers(run.file.checks[0]).of("conv2")
    assert [result.ok for result in found] == [True, True, False]


def test_operators_are_those_of_the_prepared_model(start: Start) -> None:
    run = start(MODEL + ONE)
    with run.active():
        operators = run.operators(run.file.checks[0])
    assert operators["conv1"] == operators["bn1"] == "relu"
    assert operators["relu"] == operators["head"] == ""


def test_stored_values_are_created_kept_and_missed(start: Start, tmp_path: Path) -> None:
    run, path = start(EXAMPLE), tmp_path / "__qtune__" / "resnet.qtune.json"
    key = run.file.checks[3].name
    assert [r.ok for r in results(run, 3)] == [False, False]
    stored = Baseline(path, key, update="new")
    assert [r.ok for r in results(run, 3, stored=stored)] == [True, True]
    stored.save()
    assert [r.baseline != "" for r in results(run, 3, stored=Baseline(path, key))] == [True] * 2


def test_every_metric_of_a_baseline_is_judged_and_lost_ones_are_named(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "__qtune__" / "resnet.qtune.json"
    check = "[[check]]\nkind = 'baseline'\nmetrics = ['cosine', 'atol', 'top1']\n"
    stored = Baseline(path, "baseline[float-quantized_bc]", update="all")
    stored.check("cosine", 2.0, max_drop=0.0)
    stored.check("atol", -1.0, max_rise=0.0)
    stored.check("gone", 1.0, max_drop=0.0)
    stored.save()
    found = results(start(MODEL + check))
    assert [(r.where, r.ok) for r in found] == [
        ("cosine", False),
        ("atol", False),
        ("top1", False),
        ("gone", False),
    ]


def test_an_unknown_metric_names_those_that_there_are(start: Start) -> None:
    check = "[[check]]\nkind = 'baseline'\nmetrics = ['top2']\n"
    with pytest.raises(
        GateFileError,
        match=r"10: \[\[check\]\] 1 \(baseline\): metrics: unknown "
        r"'top2'; close matches: top1; choose from cosine, .*top1",
    ):
        results(start(MODEL + check))


def test_a_pinned_artefact_is_the_integer_stage(start: Start, tmp_path: Path) -> None:
    whole = start(MODEL + ONE)
    with whole.active():
        compiler.save(whole.subject.stage("quantized_bc"), tmp_path / "net.bc")
    pinned = MODEL.replace('# artefact = "resnet.bc"', 'artefact = "net.bc"')
    assert "\nartefact" in pinned
    changed = pinned.replace("my_models:resnet18", "my_models:shared")
    same, differs = start(pinned + ONE), start(changed + ONE)
    (good,) = results(same)
    assert good.ok
    assert good.artefact == str(tmp_path / "net.bc")
    assert not results(differs)[0].ok
    alone = "[model]\nmarch = 'nash-e'\nartefact = 'net.bc'\ninputs = 'my_data:loader'\n"
    checks = "[[check]]\nkind = 'bit_exact'\nagainst = 'reference'\n"
    checks += "[[check]]\nkind = 'latency_below'\nmax_us = 1000\nstage = 'hbm'\n"
    run = start(alone + checks)
    assert results(run, 0)[0].ok
    assert results(run, 1)[0].ok
    wrong = alone.replace("nash-e", "nash-m") + checks
    with pytest.raises(GateFileError, match=r"3: \[model\]: artefact: net.bc was made for nash-e"):
        results(start(wrong))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("my_models:resnet18", "my_model:resnet18", r"3: .*factory: no module 'my_model', neither"),
        (
            "my_models:resnet18",
            "my_models:resnet81",
            r"3: .*has no 'resnet81'; did you mean 're",
        ),
        (
            "my_models:resnet18",
            "my_models:broken",
            r"3: .*broken raised ValueError: no weigh",
        ),
        ("my_models:resnet18", "my_data:calib", r"3: .*calib returned a list; expected a torch.nn"),
        ("my_models:resnet18", "sys:path", r"3: .*sys:path is a list, no model"),
        ("my_data:calib", "my_data:empty", r"10: .*the calibration data is empty"),
        ("my_data:holdout", "my_data:empty", r"6: .*inputs: my_data:empty gives no item"),
        (
            "my_data:holdout",
            "sys:maxsize",
            r"6: .*inputs: sys:maxsize gives an int; expected a",
        ),
        ("my_eval:top1", "sys:path", r"7: .*evaluate: sys:path is a list, no function"),
        ("# artefact", "method = 'jot'  #", r"8: .*method: unknown 'jot'; choose one of: eager, "),
        ("# artefact", "qconfig = 'nets:q'  #", r"8: .*qconfig: no module 'nets'"),
        ("# artefact", "artefact = 'no.bc'  #", r"8: .*artefact: there is no file no.bc"),
        ("# artefact", "artefact = 'my_data.py'  #", r"8: .*artefact: my_data.py: "),
    ],
)
def test_errors_of_what_the_model_names(start: Start, old: str, new: str, expected: str) -> None:
    check = "[[check]]\nkind = 'accuracy_drop_below'\nmax_drop = 1\n"
    checks = ONE if "top1" not in old else check
    with pytest.raises(GateFileError, match=f"^resnet.qtune.toml:{expected}") as caught:
        results(start(MODEL.replace(old, new, 1) + checks))
    if "broken" in new:
        assert isinstance(caught.value.__cause__, ValueError)


def test_an_import_that_fails_says_why(start: Start, tmp_path: Path) -> None:
    run = start(MODEL + ONE)
    (tmp_path / "my_models.py").write_text("import of_no_such_name\n")
    with pytest.raises(
        GateFileError,
        match=r"3: .*importing my_models raised ModuleNotFoundError: "
        r"No module named 'of_no_such_name' \(my_models.py:1, in <module>\)",
    ):
        results(run)


def test_a_script_that_exits_is_an_error_of_its_key(start: Start, tmp_path: Path) -> None:
    (tmp_path / "my_script.py").write_text("import sys\nsys.exit('usage: my_script')\n")
    run = start(MODEL.replace("my_models:resnet18", "my_script:make") + ONE)
    with pytest.raises(
        GateFileError, match=r"3: .*importing my_script raised SystemExit: usage: my_script"
    ):
        results(run)
    run = start(MODEL.replace("my_models:resnet18", "sys:exit") + ONE)
    with pytest.raises(GateFileError, match=r"3: .*factory: sys:exit raised SystemExit"):
        results(run)


@pytest.mark.parametrize(
    ("key", "old", "line"), [("calibration", "calib", 5), ("inputs", "holdout", 6)]
)
def test_data_that_raise_on_the_way_are_an_error_of_their_key(
    start: Start, tmp_path: Path, key: str, old: str, line: int
) -> None:
    run = start(MODEL.replace(f"my_data:{old}", "my_disk:read") + ONE)
    (tmp_path / "my_disk.py").write_text(
        "import my_data\n\n\ndef read():\n"
        "    yield my_data.holdout()\n    raise OSError('disk gone')\n"
    )
    with pytest.raises(
        GateFileError, match=rf"{line}: \[model\]: {key}: my_disk:read raised OSError: disk gone"
    ):
        results(run)


def test_an_assert_of_the_users_own_is_no_failed_check(start: Start, tmp_path: Path) -> None:
    run = start(MODEL + ONE)
    text = (tmp_path / "my_data.py").read_text()
    (tmp_path / "my_data.py").write_text(
        text.replace("    return torch", "    assert 0\n    return torch")
    )
    with pytest.raises(GateFileError, match=r"6: .*holdout raised AssertionError"):
        results(run)


def test_what_the_model_raises_on_the_inputs_names_the_check(start: Start, tmp_path: Path) -> None:
    run = start(MODEL.replace("my_data:holdout", "my_data:wide") + ONE)
    text = (tmp_path / "my_data.py").read_text()
    (tmp_path / "my_data.py").write_text(
        text + "\n\ndef wide():\n    return torch.zeros(8, 5, 16, 16)\n"
    )
    with pytest.raises(RuntimeError, match="5 channels") as caught:
        results(run)
    assert caught.value.__notes__[-1].endswith("toml:10: [[check]] 1 (consistency): what it runs")


def test_a_loader_of_pairs_gives_inputs(start: Start) -> None:
    (found,) = results(start(MODEL.replace("my_data:holdout", "my_data:loader") + ONE))
    assert found.ok


def test_the_models_file_may_be_named(start: Start) -> None:
    (found,) = results(start(MODEL.replace("my_models:", "my_models.py:") + ONE))
    assert found.ok


def test_modules_of_the_folder_are_there_within_the_block_only(start: Start) -> None:
    run, path = start(MODEL + ONE), list(sys.path)
    with run.active():
        __import__("my_models")
        first = sys.modules["my_models"]
    assert "my_models" not in sys.modules
    assert sys.path == path
    with run.active():
        assert __import__("my_models") is first


def test_a_module_of_the_same_name_elsewhere_is_put_back(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "my_data.py").write_text("calib = 1\n")
    monkeypatch.syspath_prepend(elsewhere)
    mine = __import__("my_data")
    (found,) = results(start(MODEL + ONE))
    assert found.ok
    assert sys.modules["my_data"] is mine


def test_a_module_that_everybody_finds_is_loaded_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(MODEL + ONE)
    monkeypatch.syspath_prepend(tmp_path)
    mine = __import__("my_eval")
    with run.active():
        assert __import__("my_eval") is mine
    assert sys.modules["my_eval"] is mine


def test_another_module_that_comes_in_between_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "my_own.py").write_text("PLACE = 'folder'\n")
    modules, other = Modules(tmp_path, tmp_path), ModuleType("my_own")
    with modules.active():
        importlib.import_module("my_own")
    sys.modules["my_own"] = other
    with modules.active():
        assert importlib.import_module("my_own").PLACE == "folder"
    assert sys.modules["my_own"] is other


def test_other_inputs_make_a_stored_value_stale(start: Start, tmp_path: Path) -> None:
    check = "[[check]]\nkind = 'baseline'\nmetrics = ['cosine']\n"
    stored = Baseline(tmp_path / "net.json", "check", update="new")
    assert results(start(MODEL + check), stored=stored)[0].ok
    stored.save()
    other = start(MODEL.replace("my_data:holdout", "my_data:calib") + check)
    found = results(other, stored=Baseline(tmp_path / "net.json", "check"))[0]
    assert not found.ok
    assert found.got.startswith("inputs ")


def test_a_layer_that_is_fused_can_not_be_known_to_fail(start: Start) -> None:
    run = start(f"{MODEL}{ONE}per_layer = true\nxfail = {{conv1 = 'known'}}\n")
    with run.active(), pytest.raises(GateFileError, match="14: .*xfail: conv1 is fused into relu"):
        run.operators(run.file.checks[0])
