"""assert_accuracy_drop_below: one evaluate for all stages, units, models left as they were."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qtune.errors import AnalysisError, ArgumentError
from qtune.quantization import FakeQuantState, set_fake_quantize
from qtune.testing import (
    AssertionResult,
    BatchedModule,
    Stages,
    assert_accuracy_drop_below,
)

from . import nets

X = torch.cat(nets.batches(5, seed=9))[:19]  # no multiple of the exported batch of 4


def answering(*values: float) -> Callable[[Any], float]:
    """An evaluate that returns one value after the other."""
    left = list(values)
    return lambda model: left.pop(0)


def failure(*args: Any, **kwargs: Any) -> AssertionResult:
    with pytest.raises(AssertionError) as caught:
        assert_accuracy_drop_below(*args, **kwargs)
    return caught.value.qtune_result


@pytest.mark.parametrize("stage", ["calib", "pre_export", "qat_bc", "quantized_bc", "hbm"])
def test_one_evaluate_runs_every_stage_in_any_batch_size(stages: Stages, stage: str) -> None:
    labels = stages.float(X).argmax(1)
    seen = []

    def top1(model: Any) -> Tensor:
        out = model(X)
        seen.append(tuple(out.shape))
        return (out.argmax(1) == labels).double().mean()

    result = assert_accuracy_drop_below(
        stages.float, getattr(stages, stage), top1, max_drop=50, metric="top1"
    )
    assert seen == [(19, 5), (19, 5)]
    assert set(result.metrics) == {"top1", "top1_drop_pp"}
    assert result.metrics["top1_drop_pp"] == round(100 * (1 - result.metrics["top1"]), 4)
    assert result.limits == {"top1_drop_pp": 50.0}


class Fixed(nets.TwoHeads):
    """Exported for batches of 4 and no others."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = super().forward(x)
        return {"scores": found["scores"].reshape(4, 5), "map": found["map"]}


@pytest.mark.parametrize("stage", ["qat_bc", "quantized_bc", "hbm"])
def test_a_batched_module_gives_what_single_batches_give(
    build: Callable[..., Stages], stage: str
) -> None:
    module = getattr(build(Fixed), stage)
    assert not module[0].open_batch
    batched = BatchedModule(module)
    whole = torch.cat([X, X[-1:]])
    singles = [module[0](part) for part in whole.split(4)]
    wanted = {name: torch.cat([single[name] for single in singles]) for name in singles[0]}
    for rows in (1, 4, 5, 19, 20):
        for x in (whole[:rows], whole[:rows].numpy()):
            found = batched(x)
            assert list(found) == ["scores", "map"]
            for name, value in found.items():
                assert torch.equal(value, wanted[name][:rows]), (rows, name)
    assert batched.march == module.march
    assert batched[0] is module[0]


class Total(nn.Module):
    """One number per batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.stem(x).mean((0, 2, 3))


def test_an_output_without_rows_is_refused_in_other_batch_sizes(
    build: Callable[..., Stages],
) -> None:
    batched = BatchedModule(build(Total).quantized_bc)
    assert batched(X[:4]).shape == (4,)
    with pytest.raises(ArgumentError, match="each of the 4 inputs of a batch") as caught:
        BatchedModule(build(Narrow).quantized_bc)(X)
    assert "call the module with batches of 4" in str(caught.value)


class Narrow(Total):
    def forward(self, x: Tensor) -> Tensor:
        return self.stem(x).mean((0, 2, 3))[:2]


@pytest.mark.parametrize(
    ("before", "after", "unit", "drop"),
    [
        (0.71, 0.705, "share", 0.5),  # 0.5000000000000004 in float64
        (float(np.float32(0.71)), float(np.float32(0.705)), "share", 0.5),
        (71.0, 70.5, "percent", 0.5),
        (0.7, 0.705, "share", -0.5),
    ],
)
def test_points_are_exact_at_the_limit(
    stages: Stages, before: float, after: float, unit: str, drop: float
) -> None:
    result = assert_accuracy_drop_below(
        stages.float, stages.calib, answering(before, after), max_drop=drop, unit=unit
    )
    assert result.metrics == {"accuracy": after, "accuracy_drop_pp": drop}
    failed = failure(
        stages.float, stages.calib, answering(before, after), max_drop=drop - 0.01, unit=unit
    )
    assert failed.metrics == result.metrics


def test_the_first_line_says_what_dropped(stages: Stages) -> None:
    result = failure(
        stages.float, stages.quantized_bc, answering(0.7102, 0.6984), max_drop=0.5, metric="top1"
    )
    lines = result.message().splitlines()
    assert lines[0] == (
        "accuracy_drop_below: top1: got 1.18 pp drop, 0.7102 to 0.6984, limit <= 0.5 pp"
    )
    assert lines[1] == "model: net"
    assert "top1 of the baseline: 0.7102, now 0.6984" in lines
    assert result.baseline == "0.7102"


def test_the_own_unit_and_the_other_direction(stages: Stages) -> None:
    result = assert_accuracy_drop_below(
        37.5, stages.calib, answering(37.4), max_drop=0.1, metric="map", unit="own"
    )
    assert result.metrics == {"map": 37.4, "map_drop": 0.1}
    loss = failure(
        0.5,
        stages.calib,
        answering(0.75),
        max_drop=0.2,
        metric="loss",
        unit="own",
        higher_is_better=False,
    )
    assert loss.metrics == {"loss": 0.75, "loss_drop": 0.25}


def test_the_baseline_may_be_a_number(stages: Stages) -> None:
    calls = []

    def evaluate(model: Any) -> float:
        calls.append(model)
        return 0.5

    for number in (0.5, np.float32(0.5), np.float64(0.5)):
        calls.clear()
        result = assert_accuracy_drop_below(number, stages.calib, evaluate, max_drop=0)
        assert len(calls) == 1
        assert result.metrics["accuracy_drop_pp"] == 0


@pytest.mark.parametrize(("before", "after"), [(0.5, math.nan), (math.nan, 0.5)])
def test_nan_fails(stages: Stages, before: float, after: float) -> None:
    result = failure(stages.float, stages.calib, answering(before, after), max_drop=100)
    assert result.headline.startswith("accuracy_drop_below: accuracy: got nan pp drop")
    assert math.isnan(result.metrics["accuracy_drop_pp"])


def test_infinite_values_fail(stages: Stages) -> None:
    result = failure(
        math.inf, stages.calib, answering(math.inf), max_drop=1, metric="sqnr", unit="own"
    )
    assert math.isnan(result.metrics["sqnr_drop"])


def test_models_are_left_as_they_were(stages: Stages) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten())
    model.train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    modes = []

    def evaluate(net: Any) -> float:
        modes.append((net.training, torch.is_grad_enabled()))
        if isinstance(net, nn.Module):
            net.train()  # the user's function may do anything
        net(X)
        raise KeyError("label")

    with pytest.raises(KeyError, match="label") as caught:
        assert_accuracy_drop_below(model, stages.calib, evaluate, max_drop=1)
    assert caught.value.__notes__ == ["raised by evaluate(model) with the baseline model"]
    assert modes == [(False, False)]
    assert [module.training for module in model] == [True, False, True, True]
    assert torch.is_grad_enabled()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_both_models_see_the_same_random_numbers(stages: Stages) -> None:
    drawn = []

    def evaluate(model: Any) -> float:
        drawn.append((float(torch.rand(())), float(np.random.rand())))
        return 0.5

    assert_accuracy_drop_below(stages.float, stages.quantized_bc, evaluate, max_drop=0)
    assert drawn[0] == drawn[1]


def test_a_model_under_calibration_is_refused(stages: Stages) -> None:
    model = copy.deepcopy(stages.calib)
    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    with pytest.raises(AnalysisError, match=r"^assert_accuracy_drop_below: \d+ fake-quantizes"):
        assert_accuracy_drop_below(0.5, model, answering(0.5), max_drop=1)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "expected one real number but got None"),
        ("0.5", "expected one real number but got a str"),
        (True, "expected one real number but got True"),
        (torch.zeros(2), "of shape (2,)"),
        (71.2, "71.2 is no share, which lies between 0 and 1"),
        (-0.1, "-0.1 is no share"),
    ],
)
def test_what_is_no_metric_is_refused(stages: Stages, answer: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        assert_accuracy_drop_below(stages.float, stages.calib, lambda model: answer, max_drop=1)
    assert str(caught.value).startswith(
        "assert_accuracy_drop_below: evaluate(model) with the baseline model: "
    )
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"baseline": math.nan}, "baseline must be a number but got nan"),
        ({"baseline": 71.2}, "baseline: 71.2 is no share"),
        ({"baseline": True}, "baseline must be a torch module, an HBIR module or a compiled"),
        ({"other": 0.5}, "other must be a torch module, an HBIR module or a compiled program, but"),
        ({"evaluate": 0.5}, "evaluate must be a function of a model"),
        ({"max_drop": math.nan}, "max_drop must be a number but got nan"),
        ({"metric": "top-1"}, "metric is a name of letters, digits and _"),
        ({"unit": "pp"}, "unit must be one of share, percent, own but got 'pp'"),
        ({"higher_is_better": "yes"}, "higher_is_better must be a bool"),
    ],
)
def test_wrong_arguments_are_named(stages: Stages, change: dict[str, Any], text: str) -> None:
    given = {"baseline": 0.5, "other": stages.calib, "evaluate": answering(0.5), "max_drop": 1}
    given |= change
    positional = [given.pop(name) for name in ("baseline", "other", "evaluate")]
    with pytest.raises(ArgumentError) as caught:
        assert_accuracy_drop_below(*positional, **given)
    assert str(caught.value).startswith("assert_accuracy_drop_below: ")
    assert text in str(caught.value)


def test_noise_of_float32_is_no_drop_and_one_image_of_a_million_is(stages: Stages) -> None:
    noise = 0.5 - 3e-7  # 3e-5 points
    result = assert_accuracy_drop_below(0.5, stages.hbm, lambda model: noise, max_drop=0)
    assert result.metrics["accuracy_drop_pp"] == 0.0
    with pytest.raises(AssertionError, match=r"got 0.0001 pp drop"):
        assert_accuracy_drop_below(0.5, stages.hbm, lambda model: 0.5 - 1e-6, max_drop=0)
