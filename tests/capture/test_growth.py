"""A recorded float model that meets another path records it from the float model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from qtune.capture import Inputs, capture
from qtune.capture.growth import MOST_BRANCHES
from qtune.errors import GuardError

from .replay import assert_equal
from .test_branches import Decoder, Stateful, Tasks
from .test_guards import Lambda, ShapeFlow, data


def test_other_paths_are_recorded_when_they_are_taken() -> None:
    model = Tasks().eval()
    recorded = capture(model, data(2, 3))
    for task in (("det",), ("seg",), ("det", "seg"), ("det",)):
        assert_equal(recorded(data(5, 3), task), model(data(5, 3), task))
    assert_equal(recorded(data(5, 3), mask=data(4)), model(data(5, 3), mask=data(4)))
    assert len(recorded.graph_branches) == 4


def test_sizes_of_another_path_are_recorded_once() -> None:
    """A17"""
    model = ShapeFlow()
    recorded = capture(model, (data(1, 3, 8, 8), data(1, 3)))
    for width in (8, 9, 11, 8, 9):
        inputs = (data(4, 3, 8, width), data(4, 3))
        assert torch.equal(recorded(*inputs), model(*inputs))
    assert len(recorded.graph_branches) == 2


def test_the_call_that_fails_half_way_leaves_nothing_behind() -> None:
    model = Stateful().train()
    recorded, twin = capture(model, data(4, 3) + 9), copy.deepcopy(model)
    torch.manual_seed(5)
    actual = recorded(data(4, 3) - 9)
    torch.manual_seed(5)
    assert torch.equal(actual, twin(data(4, 3) - 9))
    assert_equal(dict(recorded.named_buffers()), dict(twin.named_buffers()))
    assert int(model.norm.num_batches_tracked) == 1  # it shares its buffers


def test_the_mode_of_the_recorded_model_counts() -> None:
    model = Decoder().eval()
    recorded = capture(model, data(2, 3))
    recorded.train()
    loss = recorded(data(2, 3), data(2, 4))["loss"]
    assert torch.equal(loss, (model.head(data(2, 3)) - data(2, 4)).abs().mean())
    assert torch.equal(recorded.eval()(data(2, 3)), model.eval()(data(2, 3)))


def test_a_path_that_can_not_be_recorded_raises_both_reasons() -> None:
    recorded = capture(Decoder().eval(), data(2, 3))
    with pytest.raises(GuardError, match=r"(?s)training == False.*Recording this call.*TypeError"):
        recorded.train()(data(2, 3))


def test_inputs_that_were_changed_in_place_are_not_recorded_again() -> None:
    def change(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2 if x.max() > 5 else x

    recorded = capture(Lambda(change), torch.zeros(2))
    with pytest.raises(GuardError, match=r"bool\(gt\) == False"):
        recorded(torch.full((2,), 9.0))


def test_another_path_for_every_size_ends_with_an_error() -> None:
    def unroll(x: Tensor) -> Tensor:
        for _ in range(x.shape[0]):
            x = x + 1
        return x

    recorded = capture(Lambda(unroll), data(1, 3))
    for rows in range(1, MOST_BRANCHES + 1):
        assert torch.equal(recorded(data(rows, 3)), unroll(data(rows, 3)))
    with pytest.raises(GuardError, match=f"{MOST_BRANCHES} branches already"):
        recorded(data(MOST_BRANCHES + 1, 3))
    assert len(recorded.graph_branches) == MOST_BRANCHES


def test_copies_and_edited_graphs_stay_what_they_are() -> None:
    recorded = capture(Tasks().eval(), data(2, 3))
    with pytest.raises(GuardError, match="'seg' when"):
        copy.deepcopy(recorded)(data(2, 3), ("det",))
    recorded.recompile()
    with pytest.raises(GuardError, match="'seg' when"):
        recorded(data(2, 3), ("det",))


def test_fixed_recordings_refuse_other_paths() -> None:
    recorded = capture(nn.Sequential(Tasks()).eval(), Inputs(data(2, 3)), fixed=True)
    assert recorded(data(4, 3)).shape == (4, 2)
    branchy = capture(Tasks().eval(), data(2, 3), fixed=True)
    with pytest.raises(GuardError, match="'seg' when"):
        branchy(data(2, 3), ("det",))
