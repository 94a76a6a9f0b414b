"""``tune`` over a data set: a net with two planted activations, where the answer is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune import march
from qtune.analysis.ablation import ports
from qtune.analysis.pairs import check_pair
from qtune.dtype import qint16
from qtune.errors import AnalysisError, ArgumentError
from qtune.nn.prepared import PreparedModel
from qtune.profiler import Budget, Metric, TuneFront, tune
from qtune.quantization import get_qconfig, prepare
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
)

from .nets import assert_same, calibrated, fingerprint

CULPRITS = {("relu1", "output"), ("relu3", "output")}
LARGE = 40.0


class Chain(nn.Module):
    """Four convolutions with relu and a head; one channel behind relu1 and one behind relu3 is
    large, and nobody reads it.
    """

    def __init__(self) -> None:
        super().__init__()
        for index in range(1, 5):
            conv = nn.Conv2d(3 if index == 1 else 8, 8, 3, padding=1)
            self.add_module(f"conv{index}", conv)
            self.add_module(f"relu{index}", nn.ReLU())
        self.head = nn.Conv2d(8, 4, 1)
        with torch.no_grad():
            for before, after in ((self.conv1, self.conv2), (self.conv3, self.conv4)):
                before.bias[2] = LARGE
                after.weight[:, 2] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        for index in range(1, 5):
            x = self.get_submodule(f"conv{index}")(x)
            x = self.get_submodule(f"relu{index}")(x)
        return self.head(x)


@dataclass(frozen=True)
class Setting:
    net: Chain
    model: PreparedModel
    batches: list[Tensor]


@pytest.fixture(scope="module")
def planted_chain() -> Setting:
    """For all tests: each leaves the models as they were."""
    torch.manual_seed(0)
    net = Chain().eval()
    batches = [torch.rand(2, 3, 8, 8) for _ in range(3)]
    with march.march("nash-e"):
        return Setting(net, calibrated(net, *batches), batches)


@pytest.fixture(scope="module")
def front(planted_chain: Setting) -> TuneFront:
    s = planted_chain
    return tune(s.net, s.model, iter(s.batches), "L1", budget={"stubs": 100})


def test_the_planted_stubs_are_raised_first(front: TuneFront) -> None:
    zero, one, two = front.points[:3]
    assert zero.ports == ()
    assert len(one.ports) == 1
    assert set(one.ports) < CULPRITS
    assert set(two.ports) == CULPRITS
    assert two.mean < zero.mean / 3  # both lose nearly six bits on all channels that are read


def test_in_decibels_too_the_planted_stubs_are_raised_first(planted_chain: Setting) -> None:
    """int16 lifts ports without loss by as many dB as those that cost everything."""
    s = planted_chain
    front = tune(s.net, s.model, s.batches, "SQNR", budget={"stubs": 2}, latency=False)
    assert set(front.best().ports) == CULPRITS


def test_the_front_reaches_from_all_int8_to_all_int16(
    front: TuneFront, planted_chain: Setting
) -> None:
    assert front.points[0].int16_macs == 0.0
    assert front.points[-1].int16_macs == 1.0
    able = {(p.op.name, p.kind) for p in ports(planted_chain.model)}
    refused = {tuple(name.rsplit(" ", 1)) for name in front.skipped}
    assert able - refused in [set(point.ports) for point in front.evaluated]
    assert refused <= {("head", "weight"), ("relu4", "output")}  # one of them costs high precision
    means, costs = [p.mean for p in front.points], [p.stubs for p in front.points]
    assert means == sorted(means, reverse=True)
    assert costs == sorted(costs)
    assert len(set(means)) == len(set(costs)) == len(front)
    assert front


def test_scores_are_those_of_the_model_with_these_stubs(
    front: TuneFront, planted_chain: Setting
) -> None:
    """Set on the model, and prepared from scratch and calibrated on the same data."""
    net, model, batches = planted_chain.net, planted_chain.model, planted_chain.batches
    base = [ModuleNameTemplate({"": "qint8"}), ConvDtypeTemplate(), MatmulDtypeTemplate()]
    for point in (front.points[2], front.points[-1]):
        setter = QconfigSetter(get_qconfig(), [*base, point])
        fresh, short = calibrated(net, *batches, setter=setter), prepare(net, batches[0], point)
        wide = {(p.op.name, p.kind) for p in ports(fresh) if p.fake_quantize.dtype == qint16}
        assert wide == set(point.ports)
        assert wide == {
            (p.op.name, p.kind) for p in ports(short) if p.fake_quantize.dtype == qint16
        }
        with torch.no_grad():
            values = [Metric.L1(net(x), fresh(x)) or 0.0 for x in batches]
        assert sum(values) / 3 == point.mean
        assert max(values) == point.worst
    first = prepare(net, batches[0], QconfigSetter(get_qconfig(), [*base, front.points[0]]))
    assert first.resolution is not None
    assert first.resolution.unmatched_rules == ()
    assert {str(p.fake_quantize.dtype) for p in ports(model)} == {"qint8"}


def test_the_share_counts_multiply_adds_with_an_int16_operand(front: TuneFront) -> None:
    """Of 64 places: conv1 216, conv2 to conv4 576 each, head 32 multiply-adds."""
    total = 216 + 3 * 576 + 32
    one, two = front.points[1], front.points[2]
    assert one.int16_macs == 576 / total
    assert two.int16_macs == 2 * 576 / total
    latencies = [p.latency_us for p in front.points]
    assert None not in latencies
    assert latencies[-1] > latencies[0]  # type: ignore[operator]


def test_both_models_are_as_before(planted_chain: Setting) -> None:
    s = planted_chain
    before = fingerprint(s.net), fingerprint(s.model)
    tune(s.net, s.model, s.batches, "MSE", max_evaluations=6)
    assert_same(before[0], s.net)
    assert_same(before[1], s.model)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_both_models_are_as_before_after_an_error(
    planted_chain: Setting, error: type[BaseException]
) -> None:
    s, calls = planted_chain, []
    before = fingerprint(s.net), fingerprint(s.model)

    def failing(model: nn.Module) -> float:
        calls.append(1)
        model.train()
        if len(calls) == 4:
            raise error("stop")
        return 0.0

    with pytest.raises(error):
        tune(s.net, s.model, s.batches, score=failing, latency=False)
    assert_same(before[0], s.net)
    assert_same(before[1], s.model)


def test_a_budget_is_kept(planted_chain: Setting) -> None:
    s = planted_chain
    by_share = tune(s.net, s.model, s.batches, budget=0.35, latency=False)
    assert by_share.cost == "int16_macs"
    assert all(p.int16_macs <= 0.35 for p in by_share.evaluated)
    assert by_share.best().int16_macs > 0.25
    limit = by_share.best(0.0)
    assert limit.int16_macs == 0.0
    by_stubs = tune(s.net, s.model, s.batches, budget=Budget(stubs=2), latency=False)
    assert max(p.stubs for p in by_stubs.evaluated) == 2
    assert set(by_stubs.best().ports) == CULPRITS


def test_a_budget_of_latency_is_kept(planted_chain: Setting) -> None:
    s = planted_chain
    free = tune(s.net, s.model, s.batches[:1], max_evaluations=4)
    low, high = free.points[0].latency_us, free.points[-1].latency_us
    assert low is not None
    assert high is not None
    limit = (low + high) / 2
    front = tune(s.net, s.model, s.batches[:1], budget={"latency_us": limit}, max_evaluations=6)
    assert front.cost == "latency_us"
    assert all(low <= (p.latency_us or 0.0) <= limit for p in front.evaluated)
    assert front.best().mean < front.points[0].mean
    with pytest.raises(AnalysisError, match="needs latency=True"):
        tune(s.net, s.model, s.batches, budget={"latency_us": limit}, latency=False)


def test_an_accuracy_on_labels_may_be_what_counts(planted_chain: Setting) -> None:
    s = planted_chain
    with torch.no_grad():
        labels = [s.net(x).argmax(1) for x in s.batches]

    def accuracy(model: nn.Module) -> Tensor:
        hits = [(model(x).argmax(1) == y).double() for x, y in zip(s.batches, labels, strict=True)]
        return torch.cat([h.flatten() for h in hits]).mean()

    front = tune(s.net, s.model, s.batches, score=accuracy, latency=False)
    assert front.score == "accuracy"
    assert front.ascending
    means = [p.mean for p in front.points]
    assert means == sorted(means)
    assert front.cheapest(means[-1]) is front.points[-1]
    with pytest.raises(ArgumentError, match=r"no point reaches accuracy 1\.5; the best one is"):
        front.cheapest(1.5)


def test_of_a_loss_the_smallest_is_the_best(planted_chain: Setting) -> None:
    s = planted_chain

    def loss(model: nn.Module) -> Tensor:
        return torch.stack([(model(x) - s.net(x)).abs().mean() for x in s.batches]).mean()

    options: dict[str, Any] = {"max_evaluations": 4, "latency": False}
    front = tune(s.net, s.model, s.batches, score=loss, higher_is_better=False, **options)
    assert not front.ascending
    assert front.best().mean == min(point.mean for point in front.evaluated) < front.points[0].mean


def test_a_loss_of_the_whole_output_may_be_what_counts(planted_chain: Setting) -> None:
    s = planted_chain
    try:

        @Metric.register("tune_loss", False, "all")
        def tune_loss(output1: Tensor, output2: Tensor) -> Tensor:
            return (output1 - output2).square().sum()

        front = tune(s.net, s.model, s.batches, "tune_loss", budget={"stubs": 2}, latency=False)
    finally:
        Metric.unregister("tune_loss")
    assert front.score == "tune_loss"
    assert set(front.best().ports) == CULPRITS


def test_skipped_stubs_are_not_raised(planted_chain: Setting) -> None:
    s = planted_chain
    front = tune(
        s.net,
        s.model,
        s.batches,
        skip_prefix={"relu1": ["output"]},
        latency=False,
        max_evaluations=6,
    )
    assert len(front.evaluated) <= 6
    assert all(("relu1", "output") not in p.ports for p in front.evaluated)
    assert ("relu3", "output") in front.best().ports


def test_files_hold_the_front(front: TuneFront, planted_chain: Setting, tmp_path: Path) -> None:
    s = planted_chain
    found = tune(s.net, s.model, s.batches, max_evaluations=4, out_dir=tmp_path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"tune_front.{kind}" for kind in ("csv", "html", "pt", "txt")]
    assert torch.load(tmp_path / "tune_front.pt") == found
    assert TuneFront.load(tmp_path / "tune_front.pt") == found
    assert (tmp_path / "tune_front.txt").read_text() == f"{found}\n"
    page = (tmp_path / "tune_front.html").read_text()
    assert page.count("number of raised stubs</text>") == 2
    assert "point</th>" in page


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.conv(x)
        return {"a": y, "b": torch.sigmoid(y)}


def test_of_several_outputs_one_is_chosen() -> None:
    net, x = Two().eval(), torch.rand(1, 3, 4, 4)
    model = calibrated(net, x)
    with pytest.raises(AnalysisError, match=r"2 outputs that L1 can compare: \['a', 'b'\]; choose"):
        tune(net, model, [x])
    with pytest.raises(AnalysisError, match=r"no output 'c'; this model has: \['a', 'b'\]"):
        tune(net, model, [x], output="c")
    assert len(tune(net, model, [x], output="b", latency=False).points) > 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"data": []}, "the data gave no batch"),
        ({"data": torch.rand(1, 3, 8, 8)}, r"one batch is \[batch\]"),
        ({"max_evaluations": 1}, "an integer from 2 on, got 1"),
        ({"budget": 1.5}, "at most 1, got 1.5"),
        ({"budget": {"macs": 1}}, "no limit called 'macs'; there are int16_macs, latency_us"),
        ({"budget": "a lot"}, "must be a number from 0 on, got 'a lot'"),
        ({"skip_prefix": {"relus": ["output"]}}, "no operator's name begins so; close: relu"),
        ({"score": lambda model: None}, "expected one real number but got None"),
        ({"score": 0.5}, "score is a function of the model, got 0.5"),
        ({"data": None}, "an iterable of batches.*got None"),
        ({"skip_prefix": {1: ["output"]}}, "a prefix is a text, got 1"),
        ({"skip_prefix": {"head": None}}, "expected a list of output, weight, input"),
        ({"post_process": lambda out: None}, "no float tensor that L1 can compare, behind post_pr"),
    ],
)
def test_unusable_arguments_say_what_is_expected(
    planted_chain: Setting, options: dict[str, Any], text: str
) -> None:
    s = planted_chain
    with pytest.raises((AnalysisError, ArgumentError), match=text):
        tune(s.net, s.model, **{"data": s.batches, **options})


@pytest.mark.parametrize("most", [2, 3, 4])
def test_few_evaluations_still_measure_the_model_as_it_is(
    planted_chain: Setting, most: int
) -> None:
    s = planted_chain
    found = tune(s.net, s.model, s.batches, max_evaluations=most, latency=False)
    assert found.points[0].ports == ()
    assert len(found.evaluated) <= most
    assert max(point.stubs for point in found.evaluated) > len(CULPRITS)


def test_a_model_without_fake_quantizes_has_one_point() -> None:
    net, x = nn.Identity().eval(), torch.rand(2, 3)
    with march.march("nash-e"):
        found = tune(net, prepare(net, x), [x], latency=False)
    assert [point.ports for point in found.evaluated] == [()]
    assert not found


def test_a_float_model_is_no_model_to_tune(planted_chain: Setting) -> None:
    s = planted_chain
    check_pair(s.net, s.model, "fake_quant")
    with pytest.raises(AnalysisError, match="got a Chain"):
        tune(s.net, s.net, s.batches)  # type: ignore[arg-type]
