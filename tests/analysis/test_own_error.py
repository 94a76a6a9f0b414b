"""The error of single operators on the same input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qtune.analysis.own_error import own_errors
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError
from qtune.profiler.observe import observe
from qtune.quantization import hbdk4

from .nets import Block, Sum, calibrated


@pytest.fixture
def stages() -> dict[str, Any]:
    x = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), x)
    pre = hbdk4.pre_export(model)
    qat = hbdk4.export(model, x)
    return {"x": x, "pre": pre, "qat": qat, "int": hbdk4.convert(qat, "nash-e")}


def test_the_exported_operators_are_those_of_pre_export(stages: dict[str, Any]) -> None:
    base = observe(stages["pre"], Inputs(stages["x"]))
    feed = {stages["qat"][0].inputs[0].name: stages["x"]}
    errors = own_errors(base, feed, stages["qat"])
    assert "stem.0" not in errors  # inside a group: no result that can be had alone
    for error in errors.values():
        assert error.steps in (None, 0.0), error.name
        assert torch.equal(error.value, error.reference), error.name


def test_integer_operators_stay_within_one_step_of_their_fake_quant(
    stages: dict[str, Any],
) -> None:
    base = observe(stages["pre"], Inputs(stages["x"]))
    feed = {stages["int"][0].inputs[0].name: stages["x"]}
    errors = own_errors(base, feed, stages["int"])
    assert errors["_input_0_quant"].steps == 0  # quantize has no error (numerics.md section 3)
    assert errors["_generated_sigmoid_0"].steps == 0  # nor has a table
    steps = [error.steps for error in errors.values() if error.steps is not None]
    assert max(steps) <= 1
    assert errors["head"].steps is None  # high precision: no scale to count in


def test_a_baseline_of_another_net_is_refused(stages: dict[str, Any]) -> None:
    other = torch.rand(1, 2)
    base = observe(calibrated(Sum(), other), Inputs(other))
    with pytest.raises(AnalysisError, match="_input_0_quant|same net|no operator"):
        own_errors(base, {stages["qat"][0].inputs[0].name: stages["x"]}, stages["qat"])


class Pieces(nn.Module):
    """Operators on every piece of an unbind, whose pieces differ much."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = torch.unbind(x * 2.0, 1)
        return self.scaled(first - second) + torch.relu(third + second)


def test_an_operator_on_a_later_piece_of_an_unbind_is_fed_this_piece() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4) / 24
    qat = hbdk4.export(calibrated(Pieces(), x), x)
    module = hbdk4.convert(qat, "nash-e")
    errors = own_errors(observe(qat, Inputs(x)), {module[0].inputs[0].name: x}, module)
    steps = {name: error.steps for name, error in errors.items() if error.steps is not None}
    assert len(steps) >= 5
    assert max(steps.values()) <= 1, steps
