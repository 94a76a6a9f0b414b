"""The search for the worst inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qtune.analysis.badcase import BadCaseSearch
from qtune.analysis.cases import BadCases, CaseStore
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError
from qtune.profiler.metric import Metric

from .nets import Detection, Pair

ERRORS = [0.1, 0.5, 0.3, 0.5, 0.2]


def error_of(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Two models that differ by the input itself."""
    x = inputs.args[0]
    return torch.ones_like(x), torch.ones_like(x) + x


def data() -> list[Tensor]:
    return [torch.full((2,), value) for value in ERRORS]


def search(folder: Path, topk: int, *metrics: str, dump: bool = False) -> Any:
    store = CaseStore(folder, dump)
    chosen = [Metric.get_metric(m) for m in metrics or ("ATOL",)]
    return BadCaseSearch(chosen, topk, store), store


def test_topk_worst_first_ties_by_index(tmp_path: Path) -> None:
    finder, _ = search(tmp_path, 3)
    report = finder.run(error_of, data(), 100)
    assert report.output_to_badcase_info == {"": {"ATOL": [(1, 0.5), (3, 0.5), (2, 0.3)]}} or [
        index for index, _ in report.output_to_badcase_info[""]["ATOL"]
    ] == [1, 3, 2]
    assert report.values[""]["ATOL"] == pytest.approx(ERRORS, rel=1e-6)  # float32 inputs


@pytest.mark.parametrize("dump", [False, True])
def test_only_kept_inputs_are_on_disk(tmp_path: Path, dump: bool) -> None:
    (tmp_path / "9.pt").write_bytes(b"of an earlier search")
    finder, store = search(tmp_path, 1, "ATOL", "SQNR", dump=dump)
    report = finder.run(error_of, data(), 100)
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["1.pt"]
    assert report.indices == [1]
    assert torch.equal(store.load(1).args[0], data()[1])
    assert torch.equal(CaseStore(tmp_path).load(1).args[0], data()[1])


def test_num_steps_limits_and_generators_are_consumed_once(tmp_path: Path) -> None:
    finder, _ = search(tmp_path, 1)
    report = finder.run(error_of, (x for x in data()), 1)
    # float32 scale or value against the float64 formula: the last bits differ
    assert report.values[""]["ATOL"] == pytest.approx([0.1], rel=1e-6)


def test_nan_is_the_worst_and_empty_outputs_are_not_available(tmp_path: Path) -> None:
    """A06."""
    items = [torch.full((2,), 5.0), torch.full((2,), math.nan), torch.zeros(0)]
    finder, _ = search(tmp_path, 2)
    report = finder.run(error_of, items, 100)
    (first, second) = report.output_to_badcase_info[""]["ATOL"]
    assert first[0] == 1
    assert math.isnan(first[1])
    assert second == (0, 5.0)
    assert report.values[""]["ATOL"][2] is None
    assert report.statistics()[0]["cases"] == 2
    assert math.isnan(report.statistics()[0]["worst"])


def test_no_data_and_no_topk_are_errors(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no case with a float output"):
        search(tmp_path, 1)[0].run(error_of, [], 100)
    with pytest.raises(AnalysisError, match="topk must be at least 1, got 0"):
        search(tmp_path, 0)


def test_containers_of_any_class_are_saved_as_plain_ones(tmp_path: Path) -> None:
    x = torch.rand(2)
    inputs = Inputs(Pair(x, x), Detection(x, {"k": [1, None, "s"]}, x), mask={"m": x})
    store = CaseStore(tmp_path)
    store.keep(4, inputs, {4})
    store.flush()
    assert store.load(4) is inputs
    loaded = CaseStore(tmp_path).load(4)  # torch's safe default reads it
    assert torch.equal(loaded.args[0]["score"], x)
    assert loaded.args[1]["aux"] == {"k": [1, None, "s"]}
    assert torch.equal(loaded.kwargs["mask"]["m"], x)
    with pytest.raises(AnalysisError, match=r"5\.pt is missing"):
        store.load(5)


def test_cases_by_metric_output_and_hand(tmp_path: Path) -> None:
    finder, store = search(tmp_path, 2, "ATOL", "COSINE")
    report = finder.run(error_of, data(), 100)
    cases = BadCases(store, report)
    assert cases.indices(Metric.ATOL, "") == [1, 3]
    assert cases.indices(Metric.MSE, "") == report.indices  # not searched: all that there are
    assert cases.choose(None, Metric.ATOL, None)[0] == 1
    assert cases.choose(3, Metric.ATOL, None)[0] == 3
    with pytest.raises(AnalysisError, match="index 2 is not in the bad case report; it has"):
        cases.choose(2, Metric.ATOL, None)
    with pytest.raises(AnalysisError, match="no metric MSE; it was searched with"):
        cases.choose(None, Metric.MSE, None)
    with pytest.raises(AnalysisError, match="no output 'x' in the report"):
        cases.choose(None, Metric.ATOL, "x")
    by_hand = BadCases(store, by_hand=Inputs(torch.rand(1)))
    assert by_hand.indices(Metric.ATOL) == [0]
    with pytest.raises(AnalysisError, match="the case set by hand is 0"):
        by_hand.choose(1, Metric.ATOL, None)
    with pytest.raises(AnalysisError, match="no bad case: call auto_find_bad_case"):
        BadCases(store).choose(None, Metric.ATOL, None)
