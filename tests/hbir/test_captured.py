"""export of captured models: arguments by name, defaults, flags, guards, half types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.capture.inputs import Inputs
from qtune.capture.recorder import capture
from qtune.errors import ExportError, RunError
from qtune.hbir.export import export
from qtune.hbir.module import HbirModule

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))


@dataclass
class Result:
    total: torch.Tensor
    parts: dict


class Two(nn.Module):
    def forward(self, x, y, *, scale=2.0, task="det", extra=None):
        total = x * scale - y if task == "det" else x + y
        return Result(total, {"x": F.relu(x), "none": None})


def exported(model: nn.Module, inputs: Inputs) -> HbirModule:
    return export(capture(model.eval(), inputs), inputs)


def test_arguments_may_come_by_position_and_by_name():
    function = exported(Two(), Inputs(X, Y))[0]
    expected = Two()(X, Y).total

    for result in (function(X, Y), function.feed({"_input_0": X, "_input_1": Y})):
        total = result["_output_0"] if isinstance(result, dict) else result.total
        assert torch.equal(total, expected)
    assert function(X, Y).parts["none"] is None


def test_names_follow_the_arguments_whatever_their_order():
    inputs = Inputs(y=Y, x=X)
    graph = capture(Two().eval(), inputs)
    function = export(graph, inputs, input_names=Inputs(y="why", x="ex"))[0]

    assert torch.equal(function.feed({"why": Y, "ex": X})["_output_0"], Two()(X, Y).total)
    assert torch.equal(function(x=X, y=Y).total, Two()(X, Y).total)


def test_strings_and_numbers_of_the_export_are_part_of_the_call():
    function = exported(Two(), Inputs(X, Y, task="seg", scale=3.0))[0]

    assert torch.equal(function(X, Y, task="seg", scale=3.0).total, X + Y)
    assert torch.equal(function(X, Y).total, X + Y), "a task is fixed, so it may be left out"
    with pytest.raises(RunError, match="exported with 'seg', got 'det'"):
        function(X, Y, task="det", scale=3.0)


def test_one_tensor_given_twice_is_two_inputs():
    function = exported(Two(), Inputs(X, X))[0]

    assert torch.equal(function(X, Y).total, Two()(X, Y).total)


def test_dict_argument_comes_back_in_its_place():
    class Sum(nn.Module):
        def forward(self, batch):
            return {"sum": batch["a"] + batch["b"][0]}

    function = exported(Sum(), Inputs({"a": X, "b": (Y, None)}))[0]

    assert torch.equal(function({"b": (Y, None), "a": X})["sum"], X + Y)
    with pytest.raises(RunError, match="takes"):
        function({"a": X})


@pytest.mark.parametrize("bad", [3, 3.0, np.float32(1), "x", None])
def test_numbers_where_a_tensor_is_needed_are_refused(bad):
    function = exported(Two(), Inputs(X, Y))[0]

    with pytest.raises(RunError, match="expected a tensor"):
        function(X, bad)


def test_other_batch_sizes_follow_the_sizes_that_the_model_computes():
    """Case A17."""

    class Flat(nn.Module):
        def forward(self, x):
            return x.view(x.shape[0], -1).repeat(1, 2) + x.new_zeros(1)

    x = torch.randn(2, 3, 4)
    function = exported(Flat(), Inputs(x))[0]
    other = torch.randn(5, 3, 4)

    assert torch.equal(function(other), Flat()(other))


def test_condition_on_values_is_logged_as_unchecked(caplog):
    class Branch(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x * 3

    exported(Branch(), Inputs(X.abs()))

    assert "can't check that bool(gt) == True (test_captured.py:" in caplog.text


def test_condition_on_a_dtype_needs_no_check(caplog):
    class Branch(nn.Module):
        def forward(self, x):
            known = x.is_floating_point() and not torch.is_complex(x) and x.element_size() == 4
            return x * 2 if known and x.is_signed() and x.dtype == torch.float32 else x * 3

    function = exported(Branch(), Inputs(X))[0]

    assert caplog.text == ""
    assert torch.equal(function(X), X * 2)


def test_tensors_made_from_sizes_become_constants():
    class Mask(nn.Module):
        def forward(self, x):
            return x + torch.zeros_like(x) + torch.arange(x.shape[1]) + torch.ones(3)

    function = exported(Mask(), Inputs(X))[0]

    assert torch.equal(function(X), Mask()(X))
    assert not function.open_batch, "a constant with the example's batch size is in the graph"


def test_size_that_decides_a_branch_fixes_the_batch():
    class Branch(nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[0] == 2 else x * 3

    function = exported(Branch(), Inputs(X))[0]

    assert torch.equal(function(X), X * 2)
    with pytest.raises(RunError, match=r"expected shape \(2, 3\)"):
        function(torch.randn(4, 3))


def test_in_place_model_leaves_the_example_and_its_buffers_alone():
    """Case A15."""

    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            y = x + self.count
            y.relu_()
            y += 1
            return y

    model, x = InPlace(), X.clone()
    function = exported(model, Inputs(x))[0]

    assert torch.equal(x, X)
    assert torch.equal(model.count, torch.zeros(3))
    assert torch.equal(function(X), F.relu(X) + 1)


def test_half_and_double_models_are_refused_by_name():
    with pytest.raises(ExportError, match="float64; HBIR holds float32"):
        exported(Two(), Inputs(X.double(), Y.double()))


def test_batch_norm_in_training_mode_keeps_its_statistics():
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)).train()
    x = torch.randn(2, 3, 5)
    graph = capture(model, x)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    function = export(graph, x)[0]

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[1].training
    assert torch.allclose(function(x), model.eval()(x), atol=1e-6)  # folded or not: float32 noise
