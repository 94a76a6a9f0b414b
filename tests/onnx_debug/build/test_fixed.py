"""Thresholds that node_config fixes: their scale, what shares it, and what has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qtune.errors import ArgumentError
from qtune.hbir.hz_calibration import Calibration, calibration_of
from qtune.onnx_debug import build_model
from qtune.onnx_debug.build.result import BuildResult

from .models import classifier, items

TWO: Mapping[str, Any] = {
    "stem": {"input0": {"qtype": "int8", "threshold": 1.0}},
    "head": {"qtype": "int16", "threshold": 2.0},
}


def build(nodes: Any, **model_config: Any) -> BuildResult:
    config = {"model_config": model_config, "node_config": nodes}
    data = {"x": items(1, 3, 8, 8)}
    options: dict[str, Any] = {"save_model": False, "verbose": False, "return_builder": True}
    result = build_model(classifier(), "nash-e", data, config, **options)
    assert isinstance(result, BuildResult)
    return result


def held(result: BuildResult) -> dict[str, Calibration]:
    """The calibration nodes by the tensor that they read."""
    nodes = (node for node in result.calibrated.graph.node if node.op_type == "HzCalibration")
    return {node.input[0]: calibration_of(node) for node in nodes}


def test_a_fixed_threshold_gives_its_documented_scale() -> None:
    result = build(TWO, activation={"calibration_type": "max"})
    found, plain = held(result), held(build({}, activation={"calibration_type": "max"}))
    assert (found["x"].scales.tolist(), found["x"].thresholds.tolist()) == ([1 / 128], [1.0])
    # what the head reads, a Flatten made: both share one grid
    assert (found["f"].scales.tolist(), found["f"].bits) == ([2 / 32768], 16)
    assert found["gp"].scales.tolist() == found["f"].scales.tolist()
    assert result.info["fixed_thresholds"] == {"x": 1.0, "gp": 2.0}
    assert found["p"].scales.tolist() == plain["p"].scales.tolist()
    assert next(row for row in result.nodes if row.node == "stem").threshold == 1.0


@pytest.mark.parametrize("search", ["modelwise_search", "layerwise_search"])
def test_no_search_touches_a_fixed_threshold(search: str) -> None:
    result = build(TWO, **{search: {"metric": "mse"}})
    assert held(result)["x"].thresholds.tolist() == [1.0]
    assert result.info["fixed_thresholds"] == {"x": 1.0, "gp": 2.0}
    assert result.info["calibration"]["chosen_by"] == search


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"stem": {"input1": {"threshold": 1.0}}}, "stem: threshold: input1 has no calibration"),
        ({"twin_1": {"input0": {"threshold": 1.0}}}, "twin_1: threshold: input0 has no calibrat"),
        (
            {"pool": {"threshold": 1.0}, "twin": {"threshold": 2.0}},
            "twin: threshold 2, but pool fixes that of the same tensor 'r0' to 1",
        ),
        ({"stem": {"qtype": "float32", "threshold": 1.0}}, "the node stays float: the config"),
    ],
)
def test_a_threshold_that_can_not_be_fixed_is_named(nodes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build(nodes, activation={"calibration_type": "max"})
