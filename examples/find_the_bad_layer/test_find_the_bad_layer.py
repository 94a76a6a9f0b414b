"""A gate fails, three tools name the layer, the search repairs it, the same gate holds."""

from __future__ import annotations

from pathlib import Path

import detector
import pytest

from pytest_qtune import assert_consistency, assert_sensitivity_below
from qtune.cli import main
from qtune.profiler import Metric, QuantAnalysis

MARCH = "nash-e"
SOURCE = Path(detector.__file__)
LIMIT = 0.05  # of a score, which lies between 0 and 1
CULPRIT = "_generated_cat_0"


@pytest.fixture(scope="session")
def stages(qtune_stages):
    return qtune_stages(detector.detector, detector.calibration, march=MARCH, name="int8")


@pytest.fixture(scope="session")
def tuned(stages, tmp_path_factory):
    """The setter that the search gives: what to raise to int16."""
    analysis = QuantAnalysis(
        stages.float, stages.calib, "fake_quant", out_dir=str(tmp_path_factory.mktemp("tuning"))
    )
    analysis.set_bad_case(detector.bad_case())
    analysis.sensitivity(metric=Metric.ATOL, use_sensitivity_v2=True)
    goal = {"metric": Metric.ATOL, "threshold": LIMIT, "max_tuned_stubs": 4}
    return analysis.tune_bad_case(outputs_config={"scores": goal})


@pytest.fixture(scope="session")
def repaired(qtune_stages, tuned):
    return qtune_stages(
        detector.detector,
        detector.calibration,
        march=MARCH,
        qconfig_setter=tuned,
        name="one layer in int16",
    )


def assert_good(stages):
    """The gates of this project."""
    assert_consistency(
        stages.float, stages.quantized_bc, inputs=detector.bad_case(), min_sqnr_db=25
    )
    assert_sensitivity_below(
        stages.calib, detector.bad_case(), metric="ATOL", limit=LIMIT, output="scores"
    )


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="one scale for pixels and scores")
def test_int8_is_good(stages):
    assert_good(stages)


def test_the_assertion_names_the_layer(stages):
    with pytest.raises(AssertionError) as failure:
        assert_sensitivity_below(
            stages.calib, detector.bad_case(), metric="ATOL", limit=LIMIT, output="scores"
        )
    assert f'ModuleNameTemplate({{"{CULPRIT}": qint16}})' in str(failure.value)
    (bad,) = (layer for layer in failure.value.qtune_result.layers if not layer.ok)
    assert bad.name == f"{CULPRIT} output"
    assert bad.source.startswith("detector.py:")


def test_the_command_line_names_it(capsys, tmp_path):
    command = ["sensitivity", f"{SOURCE}:detector", "--data", f"{SOURCE}:bad_case"]
    command += ["--calibration-data", f"{SOURCE}:calibration", "--march", MARCH]
    command += ["--output", "scores", "--max", str(LIMIT), "--out-dir", str(tmp_path)]
    assert main(command) == 1  # exit status: a gate failed
    assert f"operator {CULPRIT}, port output" in capsys.readouterr().out


def test_the_search_raises_it_and_nothing_else(tuned):
    assert tuned.ports == ((CULPRIT, "output"),)
    assert tuned  # the threshold was reached


def test_with_this_layer_in_int16_it_is_good(repaired):
    assert_good(repaired)
