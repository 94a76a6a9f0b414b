"""The float model's own results under the names of the prepared one."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.profiler.float_reference import folded_operators, moved_weights, observe_baseline
from qtune.profiler.observe import observe
from qtune.profiler.undisturbed import undisturbed
from tests.analysis.nets import Block, assert_same, calibrated, fingerprint


class Resized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return F.interpolate(x, scale_factor=1.3, mode="bilinear", align_corners=False)


def test_results_are_the_float_models_own_bit_for_bit() -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    prepared = calibrated(model, x)
    run = observe_baseline(model, prepared, Inputs(x))
    assert torch.equal(run.outputs, model(x))
    relu = model.stem(x)
    assert torch.equal(run.records["stem.1"].value, model.stem[:2](x))
    assert torch.equal(run.records["stem.2"].value, relu)
    assert torch.equal(run.records["conv"].value, model.conv(relu))
    assert torch.equal(run.records["head"].value, model(x))
    assert run.records["conv"].op_type == "torch.nn.modules.conv.Conv2d"
    assert run.records["_generated_sigmoid_0"].op_type == "torch.sigmoid"
    assert list(run.records) == list(observe(prepared, Inputs(x)).records)


def test_a_convolution_with_a_folded_batch_norm_is_compared_with_the_folded_one() -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    prepared = calibrated(model, x)
    assert folded_operators(model, prepared) == {"stem.0"}
    value = observe_baseline(model, prepared, Inputs(x)).records["stem.0"].value
    # folding in float64 and rounding the weights to float32 moves the last bits
    torch.testing.assert_close(value, model.stem[:2](x), rtol=1e-4, atol=1e-5)


def test_resize_by_a_fraction_is_torchs_own_not_the_chips() -> None:
    model, x = Resized().eval(), torch.rand(1, 3, 32, 32)
    run = observe_baseline(model, calibrated(model, x), Inputs(x))
    assert torch.equal(run.records["_generated_interpolate_0"].value, model(x))


def test_parts_of_a_decomposed_operator_are_computed_from_float_values() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 2))
    x = torch.rand(3, 4)
    run = observe_baseline(model, calibrated(model, x), Inputs(x))
    parts = [name for name in run.records if name.startswith("1.")]
    assert len(parts) > 3
    largest = model[0](x).max(-1, keepdim=True).values
    assert torch.equal(run.records["1.max"].value, largest)
    assert torch.equal(run.outputs, model(x))


def test_moved_weights_are_named_and_folded_ones_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    prepared = calibrated(model, x)
    assert moved_weights(model, prepared) == []
    with torch.no_grad():
        prepared.head.weight += 0.1
    assert moved_weights(model, prepared) == ["head.weight"]
    with caplog.at_level(logging.WARNING, "qtune.analysis"):
        observe_baseline(model, prepared, Inputs(x))
    assert "head.weight" in caplog.text
    assert "QAT" in caplog.text


def test_both_models_are_left_as_they_were() -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    prepared = calibrated(model, x)
    before = fingerprint(model), fingerprint(prepared)
    observe_baseline(model, prepared, Inputs(x))
    assert_same(before[0], model)
    assert_same(before[1], prepared)


@pytest.mark.parametrize("kept", [True, False])
def test_a_state_that_forward_keeps_is_that_of_one_run(kept: bool) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.register_buffer("last", torch.zeros(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.fc(x) + self.last
            return torch.sigmoid(self.last)

    model, x = Sums().eval(), torch.rand(2, 3)
    with torch.no_grad():
        prepared = calibrated(model, x)
    model.last = torch.full((2, 3), 0.5)
    if not kept:
        prepared.float_graph = None
    with undisturbed(model, prepared):
        run = observe_baseline(model, prepared, Inputs(x))
    total = model.fc(x) + 0.5
    assert torch.equal(run.records["_generated_add_0"].value, total)
    assert torch.equal(run.outputs, torch.sigmoid(total))
    assert torch.equal(run.records["_generated_sigmoid_0"].value, torch.sigmoid(total))
