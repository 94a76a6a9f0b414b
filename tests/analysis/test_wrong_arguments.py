"""Wrong arguments of an analysis get one clear error, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.analysis.tune import tune
from qtune.errors import AnalysisError
from qtune.profiler.metric import Metric

from .nets import Sum, calibrated

X = [torch.rand(2, 2) for _ in range(3)]
Make = Callable[..., QuantAnalysis]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    net = Sum().eval()
    model = calibrated(net, *X)
    return lambda **more: QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path), **more)


@pytest.mark.parametrize("name", ["topk", "num_steps"])
@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
def test_numbers_of_a_search_are_whole_numbers(make: Make, name: str, value: Any) -> None:
    with pytest.raises(AnalysisError, match=f"{name} is a whole number from 1 on, got {value!r}"):
        make().auto_find_bad_case(X, **{name: value})


@pytest.mark.parametrize(("data", "came"), [(None, "None"), (5, "an int"), (X[0], "a Tensor")])
def test_data_that_are_no_batches_are_refused(make: Make, data: Any, came: str) -> None:
    with pytest.raises(AnalysisError, match=f"got {came}; for a single input"):
        make().auto_find_bad_case(data)


@pytest.mark.parametrize("metrics", ["L1", Metric.L1, ["L1"], (Metric.L1,)])
def test_a_single_metric_needs_no_list(make: Make, metrics: Any) -> None:
    assert list(make(metric_list=metrics).auto_find_bad_case(X).ascending) == ["L1"]


def test_post_process_must_be_callable(make: Make) -> None:
    with pytest.raises(
        AnalysisError, match="post_process is called with the outputs .* got an int"
    ):
        make(post_process=3)


@pytest.mark.parametrize("name", ["file", "file/in/it"])
def test_a_folder_that_can_not_be_is_refused_before_anything_runs(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("")
    net = Sum().eval()
    model, folder = calibrated(net, *X), str(tmp_path / name)
    with pytest.raises(AnalysisError, match="QuantAnalysis: out_dir: .* can't be a folder, .*file"):
        QuantAnalysis(net, model, "fake_quant", out_dir=folder)
    with pytest.raises(AnalysisError, match="tune: out_dir: .* can't be a folder, .*file"):
        tune(net, model, X, out_dir=folder)


def test_an_input_that_the_models_do_not_take_is_named(make: Make) -> None:
    with pytest.raises(RuntimeError) as raised:
        make().auto_find_bad_case([X[0], torch.rand(2, 3)])
    assert raised.value.__notes__ == [
        "raised on case 1 of auto_find_bad_case, by model(Tensor[2, 3])"
    ]


def test_the_empty_name_of_a_single_output_is_explained(make: Make) -> None:
    session = make()
    session.auto_find_bad_case(X)
    with pytest.raises(AnalysisError, match="'' is the tensor of a model that returns a single"):
        session.run(out_name="logits")
