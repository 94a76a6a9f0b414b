"""What counts as a layer of its own, and how often it runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs, as_inputs
from qtune.check.calls import call_counts
from qtune.check.qat_model import check_qat_model
from qtune.quantization import prepare


class Swish(nn.Module):
    """A module of functions only: entered, not called."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), Swish(), nn.Dropout(0.5))
        self.tied = nn.Linear(4, 4, bias=False)
        self.soft = nn.Softmax(-1)
        self.spare = nn.ModuleList([nn.ReLU(), nn.ReLU()])

    def forward(self, x: Tensor) -> Tensor:
        y = self.spare[0](self.body(x))
        return self.soft(nn.functional.linear(y, self.tied.weight))


def test_every_layer_counts_once_and_only_unused_ones_are_zero() -> None:
    x = torch.rand(2, 4)
    counts = call_counts(prepare(Net().eval(), x), as_inputs(x))
    assert [name for name, count in counts.items() if count != 1] == ["spare.1"]
    assert "body.0" in counts
    assert "body.1" not in counts  # its functions are operators of their own
    assert not any(name.startswith("tied") and counts[name] == 0 for name in counts)


def test_nothing_is_left_on_a_model_that_fails() -> None:
    x = torch.rand(2, 4)
    model = prepare(Net().eval(), x)
    with pytest.raises(Exception, match=r".+"):
        call_counts(model, as_inputs(torch.rand(2, 5)))
    assert not any(m._forward_hooks for m in model.modules())


class Aware(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.unused = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.conv(y) if self.training else y


def test_a_layer_that_no_branch_calls_is_reported_where_prepare_records_both_modes() -> None:
    x = torch.randn(1, 3, 4, 4)
    model = prepare(Aware().eval(), x)
    assert [branch.aside for branch in model.graph_branches] == [False, True]
    for examples in (x, [x]):
        report = check_qat_model(model, examples)
        assert (report.call_counts["conv"], report.call_counts["unused"]) == (1, 0)
        assert report.types["unused"] == "<class 'torch.nn.modules.conv.Conv2d'>"


def test_a_model_recorded_in_training_is_counted_in_its_training_branch() -> None:
    x = torch.randn(1, 3, 4, 4)
    counts = call_counts(prepare(Aware(), Inputs(x).in_mode(training=True)), as_inputs(x))
    assert (counts["conv"], counts["unused"]) == (2, 0)
    counts = call_counts(prepare(Aware().eval(), x), as_inputs(x))
    assert (counts["conv"], counts["unused"]) == (1, 0)
