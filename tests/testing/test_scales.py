"""assert_scale_in: sound scales within bounds, per channel."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from qtune.errors import ArgumentError
from qtune.march import march
from qtune.nn.prepared import PreparedModel
from qtune.prepare.rundir import run_files_in
from qtune.quantization import prepare
from qtune.testing import Stages, assert_scale_in

from . import nets


def with_scale(model: PreparedModel, op: str, channel: int, scale: float) -> PreparedModel:
    """A copy in which one scale of a weight is another one."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.get_submodule(op).weight_fake_quant.scale[channel] = scale
    return changed


def failure(model: Any, **bounds: Any) -> list[str]:
    with pytest.raises(AssertionError) as caught:
        assert_scale_in(model, **bounds)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("stage", ["calib", "pre_export", "qat_bc", "quantized_bc"])
def test_sound_scales_pass_in_every_form(stages: Stages, stage: str) -> None:
    result = assert_scale_in(getattr(stages, stage))
    assert result.metrics["bad_scales"] == 0
    names = {layer.name for layer in result.layers}
    assert {"_input_0_quant output", "_generated_relu_0 output"} <= names
    assert ("stem weight" in names) is (stage != "quantized_bc")


def test_an_exported_module_has_the_scales_of_the_prepared_model(stages: Stages) -> None:
    """All but those of results that keep their input's, which are listed in a module."""
    found = [assert_scale_in(m).layers for m in (stages.calib, stages.qat_bc)]
    calib, qat = ({layer.name: layer.value for layer in layers} for layers in found)
    assert {name: value for name, value in qat.items() if name != "pool output"} == calib
    assert qat["pool output"] == calib["_generated_relu_0 output"]


@pytest.mark.parametrize("scale", [0.0, -0.01, math.nan, math.inf])
def test_what_is_no_scale_fails_without_any_bound(stages: Stages, scale: float) -> None:
    lines = failure(with_scale(stages.calib, "body", 2, scale))
    got = f"{scale:.7g} (channel 2 of 4)"
    assert lines[0] == f"scale_in: body weight: got {got}, limit a positive number"
    assert lines[2] == "worst of 1 bad port (worst scale of each port):"
    assert failure(with_scale(stages.calib, "body", 2, scale), high=10.0)[0].startswith(
        f"scale_in: body weight: got {got}, limit "
    )


def test_a_scale_below_any_that_calibration_gives_fails(stages: Stages) -> None:
    lines = failure(with_scale(stages.calib, "head", 4, 2.0**-41))
    assert lines[0] == ("scale_in: head weight: got 4.547474e-13 (channel 4 of 5), limit >= 2**-40")
    assert assert_scale_in(with_scale(stages.calib, "head", 4, 2.0**-40))


def test_the_worst_port_is_that_which_is_furthest_beyond_its_bound(stages: Stages) -> None:
    wrong = with_scale(with_scale(stages.calib, "stem", 1, 4.0), "body", 0, 64.0)
    lines = failure(wrong, high=2.0)
    assert lines[0] == "scale_in: body weight: got 64 (channel 0 of 4), limit <= 2"
    assert lines[3].startswith("  body weight (nets.py:")
    assert lines[4].startswith("  stem weight (nets.py:")
    assert lines[5].startswith("first bad port in order of execution: stem weight (nets.py:")


def test_nan_is_worse_than_any_number(stages: Stages) -> None:
    wrong = with_scale(with_scale(stages.calib, "stem", 1, 1e30), "body", 0, math.nan)
    assert failure(wrong, high=1.0)[0].startswith("scale_in: body weight: got nan (channel 0 of 4)")


def test_ports_with_a_range_of_their_own(stages: Stages) -> None:
    scale = float(stages.calib.get_submodule("_generated_mean_0").activation_post_process.scale)
    own = {"_generated_mean_0": (scale, scale), "* weight": (None, 1.0)}
    assert assert_scale_in(stages.calib, low=1e-9, high=1.0, ranges=own)
    exact = {"_generated_mean_0": (2 * scale, None)}
    head = f"scale_in: _generated_mean_0 output: got {scale:.7g}, limit >= "
    assert failure(stages.calib, ranges=exact)[0].startswith(head)


def test_a_port_that_was_never_calibrated_fails() -> None:
    with march("nash-e"), run_files_in(None):
        raw = prepare(nets.make(), nets.batches()[0])
    assert failure(raw)[0] == (
        "scale_in: _input_0_quant output: got no scale yet, limit calibrated"
    )


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"low": 2.0, "high": 1.0}, "expected 0 < low <= high but got 2 and 1"),
        ({"low": 0.0}, "expected 0 < low"),
        ({"high": "1"}, "assert_scale_in: high must be a number but got '1'"),
        ({"ranges": {"stem": 1.0}}, r"ranges: stem weight: expected \(low, high\) but got 1.0"),
        ({"ranges": {"stme": (None, 1.0)}}, "no operator is called 'stme'; close: stem"),
    ],
)
def test_wrong_arguments_are_named(stages: Stages, asked: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        assert_scale_in(stages.calib, **asked)


def test_other_models_are_refused(stages: Stages) -> None:
    with pytest.raises(ArgumentError, match="expected a model made by prepare or an HBIR module"):
        assert_scale_in(stages.float)
