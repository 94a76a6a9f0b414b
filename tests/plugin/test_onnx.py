"""``qtune_onnx_stages`` and gate files of ONNX models: built once, reported like any other."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from ..testing import onnx_nets

TESTS = """
import pytest
from pytest_qtune import assert_consistency, assert_sensitivity_below

@pytest.fixture(scope="session")
def stages(qtune_onnx_stages):
    return qtune_onnx_stages("model.onnx", "calibration_data", name="net")

@pytest.mark.parametrize("index", range(3))
def test_integers(stages, index):
    assert_consistency(stages.qat_bc, stages.quantized_bc, inputs="holdout", max_qscale_diff=1)

def test_layers(stages):
    assert_consistency(
        stages.float, stages.quantized_bc, inputs="holdout", per_layer=True, min_cosine=0.98
    )

def test_fragile(stages):
    assert_sensitivity_below(
        stages.calibrated, "holdout", metric="cosine-similarity", limit=0.9999999
    )
"""
GATES = """
[model]
onnx = "model.onnx"
march = "nash-e"
calibration = "calibration_data/"
inputs = "holdout/"

[[check]]
kind = "consistency"
per_layer = true
min_cosine = 1.0

[[check]]
kind = "no_saturation"
max_share = 1.0
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    onnx_nets.write_project(pytester.path)
    return pytester


def built(result: pytest.RunResult) -> str:
    """What the summary says about the cache."""
    return next(line for line in result.outlines if line.startswith("artefacts: "))


def test_two_workers_build_once_and_the_next_run_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(test_net=TESTS)
    first = project.runpytest("--qtune", "-n2", "--qtune-march=nash-e")
    first.assert_outcomes(passed=4, failed=1)
    # calibrated.onnx, qat.bc and quantized.bc, and the float file is not copied
    assert "3 built" in built(first)
    again = project.runpytest("--qtune", "--qtune-march=nash-e", "-k", "layers")
    assert "0 built" in built(again)


def test_a_failure_and_the_reports_are_those_of_any_model(project: pytest.Pytester) -> None:
    project.makepyfile(test_net=TESTS)
    options = ("--qtune-march=nash-e", "--qtune-html=page.html", "--qtune-json=data.json")
    result = project.runpytest("--qtune", "--junitxml=junit.xml", *options)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E   *sensitivity_below: *_HzCalibration: got cosine 0.99*, limit >= *",
            "E   *model: net",
            "E   *artefact: *calibrated.onnx",
            "E   *run again: pytest --qtune *test_net.py::test_fragile",
        ]
    )
    data = json.loads((project.path / "data.json").read_text())
    checks = [check for test in data["tests"] for check in test["results"]]
    assert {check["model"] for check in checks} == {"net"}
    layers = next(check for check in checks if "cosine" in check["metrics"])["layers"]
    dtypes = [(layer["name"], layer["dtype"]) for layer in layers]
    assert dtypes == [("image_quant", "qint8"), ("act", "qint8"), ("head", "torch.float32")]
    page = (project.path / "page.html").read_text()
    assert "image_quant" in page
    assert "onnxruntime" in page  # of the provenance
    cases = ET.parse(project.path / "junit.xml").iter("testcase")
    case = next(case for case in cases if case.attrib["name"] == "test_layers")
    found = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
    assert 0.98 < float(found["qtune.cosine"]) <= 1


def test_gate_files_have_an_item_for_each_layer(project: pytest.Pytester) -> None:
    (project.path / "net.qtune.toml").write_text(GATES)
    result = project.runpytest("--qtune", "-rs")
    result.assert_outcomes(passed=2, failed=3, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "E   consistency: act: got COSINE 0.99*, limit >= 1",
            "net.qtune.toml:8: AssertionError",
            "SKIPPED [[]1[]] net.qtune.toml:8: fused into act, which is compared",
        ]
    )


def test_mistakes_of_data_are_shown_at_their_line(project: pytest.Pytester) -> None:
    (project.path / "net.qtune.toml").write_text(GATES.replace("holdout/", "gone/"))
    result = project.runpytest()
    result.assert_outcomes(failed=5, skipped=1)
    result.stdout.fnmatch_lines(["E   net.qtune.toml:6: [[]model[]]: inputs: there is no folder *"])
