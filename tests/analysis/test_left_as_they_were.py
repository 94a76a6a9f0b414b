"""Models with a state, and code of the user's that writes to what it gets: nothing of it stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune import march
from qtune.analysis.outputs import scores
from qtune.nn.prepared import PreparedModel
from qtune.profiler import Metric, compare_weights, tune
from qtune.profiler.raw_features import get_raw_features
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.utils.check_model import check_qat_model
from qtune.utils.quant_profiler import featuremap_similarity, model_profiler

from .nets import Block, assert_same, calibrated, fingerprint

FRAMES = [torch.full((1, 3, 4, 4), 0.3), torch.full((1, 3, 4, 4), -0.2)]


class Smooth(nn.Module):
    """Uses in one frame what it computed in the frame before, and counts the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.register_buffer("last", torch.zeros(1, 3, 4, 4))
        self.register_buffer("frames", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.conv(x)) + 0.5 * self.last
        self.last.copy_(y.detach())
        self.frames.add_(1)
        return y


@pytest.fixture
def smooth() -> tuple[Smooth, PreparedModel]:
    torch.manual_seed(0)
    with march.march("nash-e"):
        net = Smooth().eval()
        return net, calibrated(net, *FRAMES)


def _similarity(net: nn.Module, model: PreparedModel, folder: Path) -> Any:
    return featuremap_similarity(net, model, FRAMES[0], out_dir=folder)


def _profiler(net: nn.Module, model: PreparedModel, folder: Path) -> Any:
    return model_profiler(net, model, FRAMES[0], "FvsQ", out_dir=folder)


def _check(net: nn.Module, model: PreparedModel, folder: Path) -> Any:
    return check_qat_model(model, FRAMES[0], save_results=True, out_dir=folder)


def _tune(net: nn.Module, model: PreparedModel, folder: Path) -> Any:
    return tune(net, model, FRAMES, latency=False, max_evaluations=3, out_dir=folder)


def _tune_by_score(net: nn.Module, model: PreparedModel, folder: Path) -> Any:
    def score(tuned: nn.Module) -> float:
        tuned.train()
        set_fake_quantize(tuned, FakeQuantState.QAT)
        random.random()
        net(FRAMES[1])
        with torch.enable_grad():
            tuned(FRAMES[0]).sum().backward()
        return float(tuned.get_buffer("frames"))

    front = tune(net, model, FRAMES, score=score, latency=False, max_evaluations=3)
    # every evaluation starts from the same state: from one frame more than the calibration's
    assert {point.mean for point in front.evaluated} == {len(FRAMES) + 1.0}
    return front


@pytest.mark.parametrize("tool", [_similarity, _profiler, _check, _tune, _tune_by_score])
def test_a_model_keeps_its_state(
    smooth: tuple[Smooth, PreparedModel], tmp_path: Path, tool: Callable[..., Any]
) -> None:
    before, python = [fingerprint(model) for model in smooth], random.getstate()
    tool(*smooth, tmp_path)
    for model, facts in zip(smooth, before, strict=True):
        assert_same(facts, model)
    assert random.getstate() == python


def test_both_sides_of_the_similarity_start_from_their_own_state(
    smooth: tuple[Smooth, PreparedModel], tmp_path: Path
) -> None:
    net, model = smooth
    rows = featuremap_similarity(net, model, FRAMES[0], "ATOL", out_dir=tmp_path)
    found = {row[1]: row[3] for row in rows}
    with torch.no_grad():
        first = net(FRAMES[0])
        second = get_raw_features(model, FRAMES[0], prefixes=("_generated_add_0",))[-1]["data"]
    # the float side is run again here, with torch's own kernels: the same sums
    assert found["_generated_add_0"] == pytest.approx(float((first - second).abs().max()), abs=1e-6)


def _in_place(a: Tensor, b: Tensor) -> float:
    value = float((a - b).abs().mean())
    a.zero_()
    b.zero_()
    return value


@pytest.fixture(params=["pertensor", "all"])
def writing_metric(request: pytest.FixtureRequest) -> Iterator[str]:
    Metric.register("writing", ascending=False, scope=request.param)(_in_place)
    yield "writing"
    Metric.unregister("writing")


def test_a_metric_may_write_to_what_it_gets(writing_metric: str) -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0])
    assert scores(Metric.get_metric(writing_metric), a, b) in ({"": 0.25}, {"all": 0.25})
    assert a.tolist() == [1.0, 2.0]
    assert b.tolist() == [1.5, 2.0]


def test_post_process_may_write_to_what_it_gets(smooth: tuple[Smooth, PreparedModel]) -> None:
    """The baseline is kept and compared with every point: it must not be shifted each time."""

    def shifted(outputs: Tensor) -> Tensor:
        return outputs.add_(0.5)

    net, model = smooth
    options: dict[str, Any] = {"latency": False, "max_evaluations": 3}
    plain = tune(net, model, FRAMES, **options)
    found = tune(net, model, FRAMES, post_process=shifted, **options)
    # adding 0.5 moves both sides by the same, up to the rounding of float32
    for a, b in zip(found.evaluated, plain.evaluated, strict=True):
        assert a.mean == pytest.approx(b.mean, abs=1e-6)


def test_a_similarity_function_may_write_to_what_it_gets(tmp_path: Path) -> None:
    net = Block().eval()
    x = torch.rand(1, 3, 8, 8)
    pairs = compare_weights(net, prepare(net, x), _in_place, out_dir=tmp_path)
    assert torch.equal(pairs["head.weight"]["quantized"], net.head.weight)


def test_models_in_data_parallel_are_compared_under_the_names_inside(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 3, 8, 8)
    net = Block().eval()
    model = calibrated(net, x)
    wrapped = nn.DataParallel(net).eval()
    pairs = compare_weights(wrapped, model, out_dir=tmp_path)
    assert list(pairs) == ["stem.0.weight", "conv.weight", "head.weight"]
    rows = featuremap_similarity(wrapped, model, x, out_dir=tmp_path)
    assert rows == featuremap_similarity(net, model, x, out_dir=tmp_path)
