"""assert_consistency: what passes, what fails and how, what is refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import ArgumentError
from qtune.testing import Stages, assert_consistency
from qtune.testing.origin import Origin
from qtune.testing.result import LayerResult

from . import nets


def failure(*args: Any, **kwargs: Any) -> tuple[str, Any]:
    """The message and the result of an assertion that must fail."""
    with pytest.raises(AssertionError) as caught:
        assert_consistency(*args, **kwargs)
    return str(caught.value), caught.value.qtune_result


def test_every_operator_is_within_one_step(stages: Stages) -> None:
    result = assert_consistency(
        stages.qat_bc, stages.quantized_bc, inputs=nets.batches()[0], max_qscale_diff=1
    )
    assert result
    assert result.metrics["max_qscale_diff"] <= 1
    assert [layer.name for layer in result.layers] == [
        "_input_0_quant",
        "_generated_relu_0",
        "pool",
        "_generated_relu_1",
        "_generated_mean_0",
    ]
    assert "not counted in steps: head" in result.table  # an output without a scale is named


def test_calibrated_model_may_be_the_baseline(stages: Stages) -> None:
    assert assert_consistency(
        stages.calib, stages.quantized_bc, inputs=nets.batches()[0], max_qscale_diff=1
    )


def test_wrong_operator_is_named_by_its_own_error_not_its_followers(stages: Stages) -> None:
    broken = nets.damaged(stages.quantized_bc, "_generated_relu_0")
    message, result = failure(
        stages.qat_bc, broken, inputs=nets.batches()[0], max_qscale_diff=1, name="net"
    )
    lines = message.splitlines()
    assert lines[0].startswith("consistency: _generated_relu_0: got ")
    assert lines[0].endswith(" steps, limit <= 1")
    assert len(lines[0]) <= 80
    bad = [layer.name for layer in result.layers if not layer.ok]
    assert bad == ["_generated_relu_0"]
    assert "first bad layer in order of execution: _generated_relu_0" in message
    assert "of the codes differ" in message
    assert "saturated" in message
    assert "shape (4, 4, 8, 8), scale " in message


def test_opposite_ends_of_the_grid_are_255_steps_apart(build: Any) -> None:
    """No wrap-around: -128 against 127 is not one step."""
    stages = build(nets.Signed)
    broken = nets.damaged(stages.quantized_bc, "stem", -(2**30))
    loud = 9 * nets.batches()[0]  # some of the baseline's codes are 127
    message, result = failure(stages.qat_bc, broken, inputs=loud, max_qscale_diff=1)
    assert message.startswith("consistency: stem: got 255 steps, limit <= 1")
    assert result.metrics["max_qscale_diff"] == 255


def test_result_that_strays_to_the_end_of_the_grid_is_saturated(stages: Stages) -> None:
    broken = nets.damaged(stages.quantized_bc, "_generated_relu_0", 2**30)
    low = torch.full((4, 3, 8, 8), -9.0)
    _, result = failure(stages.qat_bc, broken, inputs=low, max_qscale_diff=1)
    (bad,) = [layer for layer in result.layers if not layer.ok]
    assert bad.saturated == 1.0


def test_end_to_end_metrics(stages: Stages) -> None:
    result = assert_consistency(
        stages.float,
        stages.quantized_bc,
        inputs=nets.batches()[0],
        min_cosine=0.98,
        min_sqnr_db=10,
        max_atol=1.0,
        max_l1=0.5,
    )
    assert set(result.metrics) == {"cosine", "sqnr_db", "atol", "l1"}
    assert result.where == "output"


def test_failed_metric_is_the_first_line(stages: Stages) -> None:
    message, result = failure(
        stages.float,
        stages.quantized_bc,
        inputs=nets.batches()[0],
        min_cosine=0.5,
        min_sqnr_db=200,
    )
    assert message.splitlines()[0].startswith("consistency: output: got SQNR ")
    assert message.splitlines()[0].endswith(", limit >= 200")
    assert not result


def test_per_layer_names_the_worst_and_the_first_bad_layer(stages: Stages) -> None:
    broken = nets.damaged(stages.quantized_bc, "_generated_relu_1")
    message, result = failure(
        stages.float, broken, inputs=nets.batches()[0], per_layer=True, min_cosine=0.97
    )
    assert "first bad layer in order of execution: _generated_relu_1:" in message
    bad = [layer for layer in result.layers if not layer.ok]
    assert bad[0].differing is not None
    assert bad[0].scale is not None


def test_message_says_where_the_artefact_lies(stages: Stages) -> None:
    message, result = failure(
        stages.float, stages.quantized_bc, inputs=nets.batches()[0], max_atol=0.0
    )
    path = stages.store.path(stages.key, "quantized.bc")
    assert f"artefact: {path}" in message
    assert path is not None
    assert path.exists()
    assert result.provenance["march"] == "nash-e"


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_other_batch_sizes_than_the_exported_one(stages: Stages, rows: int) -> None:
    x = torch.cat(nets.batches())[:rows]
    assert_consistency(stages.qat_bc, stages.quantized_bc, inputs=x, max_qscale_diff=1)
    result = assert_consistency(stages.float, stages.quantized_bc, inputs=x, min_cosine=0.9)
    assert result.layers[0].shape == (rows, 5)


def test_list_of_inputs_is_several_examples(stages: Stages) -> None:
    result = assert_consistency(
        stages.float, stages.quantized_bc, inputs=nets.batches(2), min_cosine=0.9
    )
    assert result.layers[0].shape == (8, 5)


class WithNaN(nn.Module):
    """One output element is NaN."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x).clone()
        y[0, 0] = math.nan
        return y


@pytest.mark.parametrize(
    "limit", [{"min_cosine": -1}, {"min_sqnr_db": -1e9}, {"max_atol": 1e30}, {"max_l1": 1e30}]
)
@pytest.mark.parametrize("swap", [False, True])
def test_nan_never_passes(stages: Stages, limit: dict[str, float], swap: bool) -> None:
    models = [stages.float, WithNaN(stages.float)]
    message, _ = failure(*(models[::-1] if swap else models), inputs=nets.batches()[0], **limit)
    assert "got " in message
    assert "nan" in message.splitlines()[0]


def test_nan_on_both_sides_does_not_pass(stages: Stages) -> None:
    model = WithNaN(stages.float)
    failure(model, model, inputs=nets.batches()[0], max_atol=1e30)


def test_modes_of_the_models_stay(stages: Stages) -> None:
    model = copy.deepcopy(stages.float).train()
    assert_consistency(model, stages.quantized_bc, inputs=nets.batches()[0], min_cosine=0.5)
    assert all(module.training for module in model.modules())


X = torch.zeros(4, 3, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "give at least one limit: max_qscale_diff, min_cosine"),
        ({"min_cosine": math.nan}, "min_cosine must be a number but got nan"),
        ({"min_cosine": "0.9"}, r"min_cosine must be a number but got '0.9' \(type=str\)"),
        ({"max_atol": True}, "max_atol must be a number but got True"),
        ({"max_qscale_diff": math.nan}, "max_qscale_diff must be a number"),
        ({"min_cosine": 99}, "min_cosine can't be met: a cosine is at most 1 but got 99; 99 % is"),
        ({"max_atol": -0.1}, "max_atol can't be met: an error is never below 0 but got -0.1"),
        ({"max_qscale_diff": -1}, "max_qscale_diff can't be met: an error is never below 0"),
    ],
)
def test_bad_limits_are_refused(stages: Stages, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        assert_consistency(stages.qat_bc, stages.quantized_bc, inputs=X, **arguments)


@pytest.mark.parametrize("per_layer", [True, False])
def test_a_float_layer_that_is_the_first_bad_one_sends_to_its_inputs(per_layer: bool) -> None:
    """The large channel rules relu's cosine and its scale, and only the head tells the others."""
    head = torch.nn.Linear(2, 2, bias=False)
    head.weight.data = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    model = nn.Sequential(nn.ReLU(), head)
    x = torch.tensor([[1000.0, 1.0], [1000.0, 2.0], [900.0, 3.0]])
    stages = Stages(model, [x], march="nash-e")
    message, result = failure(
        stages.float, stages.quantized_bc, inputs=x, min_cosine=0.99, per_layer=per_layer
    )
    bad = next(layer for layer in result.layers if not layer.ok)
    assert (bad.name, bad.dtype) == ("1", "torch.float32")
    assert "raise it to qint16" not in message
    assert "so the error is that of its input or weight: assert_sensitivity_below" in message


def test_bad_models_are_refused(stages: Stages) -> None:
    with pytest.raises(ArgumentError, match="baseline must be a torch module .* qtune.testing.st"):
        assert_consistency(stages, stages.quantized_bc, inputs=X, min_cosine=0.9)
    with pytest.raises(ArgumentError, match=r"max_qscale_diff: other must be an HBIR module"):
        assert_consistency(stages.qat_bc, stages.calib, inputs=X, max_qscale_diff=1)


def test_outputs_of_another_shape_are_refused(stages: Stages) -> None:
    with pytest.raises(ArgumentError, match=r"output: .*\(4, 5\), the other's \(4, 3, 8, 8\)"):
        assert_consistency(stages.float, nn.Identity(), inputs=X, min_cosine=0.9)


def test_outputs_of_another_structure_are_refused(stages: Stages) -> None:
    with pytest.raises(ArgumentError, match=r"differ in structure: .*'map', 'scores'"):
        assert_consistency(stages.float, nets.make(nets.TwoHeads), inputs=X, min_cosine=0.9)


def test_operators_without_a_counterpart_are_named(stages: Stages) -> None:
    other = nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten()).eval()
    _, result = failure(stages.qat_bc, other, inputs=X, max_atol=0, per_layer=True)
    assert result.table == "no counterpart in the baseline, not compared: 0, 1"


def test_named_outputs(build: Any) -> None:
    stages = build(nets.TwoHeads)
    result = assert_consistency(
        stages.float, stages.quantized_bc, inputs=nets.batches()[0], min_cosine=0.9
    )
    assert [layer.name for layer in result.layers] == ["output map", "output scores"]


def test_layers_name_the_line_of_the_model_that_they_come_from(stages: Stages) -> None:
    result = assert_consistency(
        stages.float, stages.quantized_bc, inputs=nets.batches()[0], per_layer=True, min_cosine=0.5
    )
    sources = {layer.name: layer.source for layer in result.layers}
    assert sources["_generated_relu_0"].startswith("nets.py:")
    line = next(layer for layer in result.layers if layer.name == "_generated_relu_0").line()
    assert line.startswith(f"_generated_relu_0 ({sources['_generated_relu_0']}): ")


def test_the_second_call_of_a_reused_operator_has_its_line_too() -> None:
    origin = Origin("net", sources={"r": "net.py:4, net.py:5", "deep_2": "net.py:9"})
    names = ("r", "r_1", "r_1 output", "r_x", "deep_2", "deep_2_1 weight", "other_1")
    found = origin.located([LayerResult(name, None, True, 0.0) for name in names])
    both, deep = "net.py:4, net.py:5", "net.py:9"
    assert [layer.source for layer in found] == [both, both, both, "", deep, deep, ""]


def test_end_to_end_failure_names_the_operators_in_which_it_grows(stages: Stages) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_consistency(
            stages.float, stages.quantized_bc, inputs=nets.batches()[0], min_cosine=0.9999999
        )
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("consistency: output: got COSINE 0.99999")
    assert lines[0].endswith(", limit >= 0.9999999")
    assert lines[2].startswith("worst of ")
    assert lines[2].endswith(" bad layers (COSINE of each operator):")
    first = next(line for line in lines if line.startswith("first bad layer"))
    assert " _input_0_quant: " in first  # an input has no line
    assert "beyond the limit:" in lines
    assert {layer.name for layer in caught.value.qtune_result.layers} >= {"pool", "head"}
    assert "raise it to qint16" in str(caught.value)


def test_end_to_end_failure_on_much_data_looks_at_operators_on_the_first_batches(
    stages: Stages,
) -> None:
    with pytest.raises(AssertionError, match="operators: on the first 4 of 6 batches"):
        assert_consistency(
            stages.float, stages.quantized_bc, inputs=nets.batches(6), min_cosine=0.9999999
        )


def test_end_to_end_failure_without_comparable_operators_keeps_the_outputs(
    stages: Stages,
) -> None:
    class Alone(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones(x.shape[0], 5)

    with pytest.raises(AssertionError) as caught:
        assert_consistency(Alone(), stages.quantized_bc, inputs=nets.batches()[0], max_atol=0.01)
    text = str(caught.value)
    assert "worst of 1 bad output (ATOL of the outputs):" in text
    assert "operators can't be compared: " in text
    assert "run again with per_layer=True, or assert_sensitivity_below" in text
