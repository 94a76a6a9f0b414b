"""Gate files as tests: ids, items, failures, selection, marks, errors of collection."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET

import pytest

from ..testing.gatefile import projects
from ..testing.gatefile.projects import MODEL

FILE = "resnet.qtune.toml"
PAIR = "float-quantized_bc"
LAYERS = (
    "_input_0_quant",
    "conv1",
    "bn1",
    "relu",
    "conv2",
    "_generated_mean_0",
    "head",
    "_output_0_dequant",
)
IDS = [
    "no_shared_ops[calib]",
    *(f"consistency[{PAIR}-{layer}]" for layer in LAYERS),
    f"consistency[{PAIR}-[others]]",
    "sensitivity_below[calib]",
    f"baseline[{PAIR}]",
]
FAILING = """
[[check]]
kind = "no_unfused"

[[check]]
kind = "consistency"
min_cosine = 1.0
max_atol = 100
per_layer = true
"""


@pytest.fixture
def example(pytester: pytest.Pytester) -> pytest.Pytester:
    projects.write(pytester.path)
    return pytester


def gates(pytester: pytest.Pytester, checks: str) -> pytest.Pytester:
    projects.write(pytester.path, MODEL + checks)
    return pytester


def collected(result: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_each_check_is_an_item_and_each_layer_of_a_per_layer_check(
    example: pytest.Pytester,
) -> None:
    result = example.runpytest("--collect-only", "-q")
    assert collected(result) == IDS


def test_the_example_of_the_specification_passes_once_its_baseline_is_written(
    example: pytest.Pytester,
) -> None:
    result = example.runpytest("--qtune", "-rs")
    result.assert_outcomes(passed=9, failed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "E   baseline: sqnr_db: got *, limit a baseline",
            "E   baseline: top1: got *, limit a baseline",
            "resnet.qtune.toml:25: AssertionError",
            "SKIPPED [[]2[]] resnet.qtune.toml:13: fused into relu, which is compared",
        ]
    )
    example.runpytest("--qtune", "--qtune-update=new").assert_outcomes(passed=10, skipped=2)
    stored = json.loads((example.path / "__qtune__" / "resnet.qtune.json").read_text())
    assert list(stored["entries"]) == [f"baseline[{PAIR}]"]
    assert set(stored["entries"][f"baseline[{PAIR}]"]) == {"sqnr_db", "top1"}
    example.runpytest("--qtune").assert_outcomes(passed=10, skipped=2)
    example.runpytest().assert_outcomes(passed=10, skipped=2)


def test_a_failure_is_the_message_of_the_assertion_at_the_line_of_the_check(
    pytester: pytest.Pytester,
) -> None:
    gates(pytester, FAILING)
    result = pytester.runpytest("--qtune", "--junitxml=junit.xml", "-k", "conv2 or unfused")
    result.assert_outcomes(passed=1, failed=1, deselected=8)
    result.stdout.fnmatch_lines(
        [
            f"_* consistency[[]{PAIR}-conv2[]] _*",
            "E   consistency: conv2: got COSINE 0.9*, limit >= 1",
            "E   model: resnet",
            "E   worst of 1 bad layer (COSINE of each operator):",
            "E     conv2 (my_models.py:17): 0.99*, qint8, shape (4, 4, 6, 6), scale *",
            "E   artefact: *quantized.bc",
            "E   run again: *",
            "resnet.qtune.toml:14: AssertionError",
            f"FAILED resnet.qtune.toml::consistency[[]{PAIR}-conv2[]] - consistency*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*gate_files.py*")
    cases = ET.parse(pytester.path / "junit.xml").iter("testcase")
    case = next(c for c in cases if "conv2" in c.attrib["name"])
    found = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
    assert 0.9 < float(found["qtune.0.cosine"]) < 1
    assert float(found["qtune.1.atol"]) < 1


def test_the_command_to_run_again_runs_that_item_alone(pytester: pytest.Pytester) -> None:
    gates(pytester, FAILING)
    result = pytester.runpytest("-k", "conv2")
    line = next(line for line in result.outlines if "run again: " in line)
    command = shlex.split(line.partition("run again: ")[2])
    assert command[0] == "pytest"
    again = pytester.runpytest(*command[1:])
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["E   consistency: conv2: got COSINE 0.9*"])


def test_the_whole_comparison_and_its_items_fail_alike(pytester: pytest.Pytester) -> None:
    gates(pytester, FAILING)
    result = pytester.runpytest("-rfs")
    result.stdout.no_fnmatch_line("*gate_files.py*")
    failed = re.findall(r"^FAILED .*_bc-(\S+)\]", "\n".join(result.outlines), re.M)
    assert {"relu", "conv2", "head"} <= set(failed)
    assert "[others]" not in failed
    result.assert_outcomes(failed=len(failed), passed=10 - 2 - len(failed), skipped=2)


def test_last_failed_and_first_failure_are_those_of_any_test(pytester: pytest.Pytester) -> None:
    gates(pytester, FAILING)
    assert pytester.runpytest("-x").parseoutcomes()["failed"] == 1
    again = pytester.runpytest("--lf", "--collect-only", "-q")
    assert len(collected(again)) == 1


MARKED = """
[[check]]
kind = "no_shared_ops"
slow = true

[[check]]
kind = "no_unfused"
marks = ["nightly"]

[[check]]
kind = "consistency"
min_cosine = 1.0
xfail = "int8 is not exact"
id = "strict"

[[check]]
kind = "consistency"
min_cosine = 1.0
skip = "takes long"
"""


def test_marks_select_skip_and_expect_failures(pytester: pytest.Pytester) -> None:
    gates(pytester, MARKED)
    pytester.makeini("[pytest]\nmarkers = nightly")
    result = pytester.runpytest("-rxs", "--qtune")
    result.assert_outcomes(passed=2, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*resnet.qtune.toml: takes long"])
    result.stdout.fnmatch_lines(["XFAIL resnet.qtune.toml::consistency[[]strict[]] - int8 is not*"])
    assert collected(pytester.runpytest("--collect-only", "-q", "-m", "nightly")) == [
        "no_unfused[calib]"
    ]
    fast = collected(pytester.runpytest("--collect-only", "-q", "-m", "not qtune_slow"))
    assert "no_shared_ops[calib]" not in fast
    assert len(fast) == 3


def test_single_layers_may_be_known_to_fail(pytester: pytest.Pytester) -> None:
    check = FAILING[FAILING.rindex("[[check]]") :]
    gates(pytester, f"{check}xfail = {{conv2 = 'int16 to come'}}")
    result = pytester.runpytest("-k", "conv2 or relu", "-rx")
    result.assert_outcomes(failed=1, xfailed=1, deselected=7)
    result.stdout.fnmatch_lines(["XFAIL *-conv2[]] - int16 to come"])
    gates(pytester, f"{check}xfail = {{conv3 = 'int16 to come'}}")
    result = pytester.runpytest()
    result.stdout.fnmatch_lines(["resnet.qtune.toml:15: *xfail: there is no layer 'conv3'; close*"])


def test_a_skipped_check_loads_nothing_and_an_error_is_no_expected_failure(
    pytester: pytest.Pytester,
) -> None:
    text = FAILING.replace("per_layer", "skip = 'later'\nper_layer", 1)
    gates(pytester, text.replace('"no_unfused"', '"no_unfused"\nxfail = "known"'))
    path = pytester.path / FILE
    path.write_text(path.read_text().replace(":resnet18", ":broken"))
    pytester.runpytest().assert_outcomes(failed=1, skipped=1)


def test_a_mistake_in_the_file_is_one_line_with_its_place(pytester: pytest.Pytester) -> None:
    gates(pytester, '[[check]]\nkind = "consistency"\nmin_cosin = 0.9\n')
    result = pytester.runpytest("--qtune", "--qtune-json=q.json")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "resnet.qtune.toml:12: [[][[]check]] 1 (consistency): unknown key 'min_cosin'; close "
            "matches: min_cosine; it takes kind, from, to, inputs, *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    (other,) = json.loads((pytester.path / "q.json").read_text())["other_failures"]
    assert other["error"].startswith("resnet.qtune.toml:12: ")


def test_what_the_users_code_raises_is_shown_at_the_key_that_names_it(
    pytester: pytest.Pytester,
) -> None:
    gates(pytester, '[[check]]\nkind = "no_unfused"\n')
    path = pytester.path / FILE
    path.write_text(path.read_text().replace(":resnet18", ":broken"))
    result = pytester.runpytest("--qtune", "--qtune-json=q.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   resnet.qtune.toml:3: [[]model]: factory: my_models:broken raised ValueError: no "
            "weights today (my_models.py:*, in broken)",
            "resnet.qtune.toml:10: GateFileError",
        ]
    )
    (test,) = json.loads((pytester.path / "q.json").read_text())["tests"]
    assert test["results"] == []
    assert test["error"].startswith("resnet.qtune.toml:3: ")


def test_two_folders_with_modules_of_the_same_name_do_not_mix(pytester: pytest.Pytester) -> None:
    check = '[[check]]\nkind = "no_shared_ops"\n'
    for name in ("one", "two"):
        (pytester.path / name).mkdir()
        projects.write(pytester.path / name, MODEL + check)
    models = pytester.path / "two" / "my_models.py"
    models.write_text(models.read_text().replace("    return Net()", "    return shared()", 1))
    pytester.makepyfile(
        test_after="""
        import importlib.util, sys

        def test_nothing_is_left():
            assert not [name for name in sys.modules if name.startswith("my_")]
            assert importlib.util.find_spec("my_models") is None
        """
    )
    result = pytester.runpytest("one", "two", "one", "test_after.py", "-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "one/resnet.qtune.toml::no_shared_ops[[]calib[]] PASSED*",
            "two/resnet.qtune.toml::no_shared_ops[[]calib[]] FAILED*",
        ]
    )


def test_the_march_of_the_run_is_for_files_that_name_none(pytester: pytest.Pytester) -> None:
    gates(pytester, '[[check]]\nkind = "no_unfused"\n')
    path = pytester.path / FILE
    path.write_text(path.read_text().replace('march = "nash-e"', ""))
    pytester.runpytest("--qtune-march=nash-m").assert_outcomes(passed=1)
    result = pytester.runpytest()
    result.stdout.fnmatch_lines(["E   resnet.qtune.toml:2: [[]model]: no march is given; add *"])


def test_an_ordinary_file_loads_neither_torch_nor_the_users_modules_at_collection(
    pytester: pytest.Pytester,
) -> None:
    gates(pytester, '[[check]]\nkind = "consistency"\nmin_cosine = 0.9\n')
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            found = [name for name in ("torch", "numpy", "my_models") if name in sys.modules]
            print("loaded:", found)
        """
    )
    result = pytester.runpytest_subprocess("--collect-only", "-q", "-p", "no:xdist")
    result.stdout.fnmatch_lines([f"{FILE}::consistency[[]{PAIR}[]]", "loaded: []"])


@pytest.mark.parametrize(("dist", "workers"), [("loadgroup", 1), ("worksteal", 2)])
def test_workers_find_what_one_process_finds(
    pytester: pytest.Pytester, dist: str, workers: int
) -> None:
    gates(pytester, FAILING)
    alone = pytester.runpytest("-rfs", "--tb=no")
    split = pytester.runpytest(
        f"-n{workers}", f"--dist={dist}", "-rfs", "--tb=line", "--qtune", "--qtune-json=q.json"
    )
    assert split.parseoutcomes() == alone.parseoutcomes()
    group = "@resnet.qtune.toml:14" if dist == "loadgroup" else ""
    expected = {line for line in alone.outlines if line.startswith("FAILED")}
    found = {line.replace(group, "") for line in split.outlines if line.startswith("FAILED")}
    assert found == expected
    assert len(expected) > 3
    data = json.loads((pytester.path / "q.json").read_text())
    assert data["artefacts"]["built"] <= 3  # the first run in this process left them


def test_the_layers_of_a_check_stay_in_one_worker_of_loadgroup(example: pytest.Pytester) -> None:
    items, _ = example.inline_genitems(FILE)
    groups = {
        item.name: [m.kwargs["name"] for m in item.iter_markers("xdist_group")] for item in items
    }
    assert [groups[name] for name in IDS[1 : 2 + len(LAYERS)]] == [[f"{FILE}:13"]] * (
        1 + len(LAYERS)
    )
    assert groups[IDS[0]] == []
