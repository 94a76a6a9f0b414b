"""assert_sensitivity_below."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from qtune.errors import AnalysisError, ArgumentError
from qtune.testing import Stages, assert_sensitivity_below

from . import nets


def test_robust_model_passes_and_every_port_has_a_score(stages: Stages) -> None:
    result = assert_sensitivity_below(stages.calib, nets.batches()[0], metric="ATOL", limit=1.0)
    names = {layer.name for layer in result.layers}
    assert {"_input_0_quant output", "stem weight", "head weight"} <= names
    assert all(layer.ok for layer in result.layers)
    assert result.metrics["sensitivity_atol"] == max(layer.value for layer in result.layers)


def test_worst_port_is_the_first_line(stages: Stages) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_sensitivity_below(stages.calib, nets.batches()[0], metric="L1", limit=1e-6)
    result = caught.value.qtune_result
    worst = max(result.layers, key=lambda layer: layer.badness)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"sensitivity_below: {worst.name}: got L1 ")
    assert first.endswith(", limit <= 1e-06")
    assert f"Raise {worst.name} to qint16" in str(caught.value)


def test_ascending_metrics_are_bounded_from_below(stages: Stages) -> None:
    x = nets.batches()[0]
    assert_sensitivity_below(stages.calib, x, metric="COSINE", limit=0.9)
    with pytest.raises(AssertionError, match=r"limit >= 1\.1"):
        assert_sensitivity_below(stages.calib, x, metric="COSINE", limit=1.1)


def test_of_several_inputs_the_worst_counts(stages: Stages) -> None:
    loud = 5 * nets.batches()[0]  # far outside the calibrated range: clipped
    calm = assert_sensitivity_below(stages.calib, nets.batches()[0], limit=100)
    both = assert_sensitivity_below(stages.calib, [nets.batches()[0], loud], limit=100)
    assert both.metrics["sensitivity_atol"] > calm.metrics["sensitivity_atol"]


def test_nan_score_fails(stages: Stages) -> None:
    x = nets.batches()[0].clone()
    x[0, 0, 0, 0] = math.nan
    with pytest.raises(AssertionError, match="got ATOL nan"):
        assert_sensitivity_below(stages.calib, x, limit=1e30)


def test_one_output_may_be_chosen(build: Any) -> None:
    stages = build(nets.TwoHeads)
    x = nets.batches()[0]
    result = assert_sensitivity_below(stages.calib, x, limit=100, output="scores")
    body = next(layer for layer in result.layers if layer.name == "body weight")
    assert body.value == 0  # the map's conv does not touch the scores
    with pytest.raises(AnalysisError, match=r"no output named \['other'\]"):
        assert_sensitivity_below(stages.calib, x, limit=100, output="other")


def test_bad_arguments(stages: Stages) -> None:
    x = torch.zeros(1, 3, 8, 8)
    with pytest.raises(ArgumentError, match="expected a model made by prepare"):
        assert_sensitivity_below(stages.float, x, limit=1)
    with pytest.raises(ArgumentError, match="limit must be a number"):
        assert_sensitivity_below(stages.calib, x, limit=math.nan)
    with pytest.raises(ArgumentError, match="no metric 'atol'"):
        assert_sensitivity_below(stages.calib, x, metric="atol", limit=1)
