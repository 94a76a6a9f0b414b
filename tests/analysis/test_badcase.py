"""The search for the worst inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.analysis.badcase import BadCaseSearch, report_of
from qtune.analysis.cases import BadCases, Case, CaseStore
from qtune.analysis.quant_analysis import QuantAnalysis
from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import Metric

from .nets import Detection, Pair, calibrated

ERRORS = [0.1, 0.5, 0.3, 0.5, 0.2]


def error_of(case: Case) -> tuple[Tensor, Tensor]:
    """Two models that differ by the input itself."""
    x = case.inputs.args[0]
    return torch.ones_like(x), torch.ones_like(x) + x


def data() -> list[Tensor]:
    return [torch.full((2,), value) for value in ERRORS]


def cases(items: Iterable[Tensor] | None = None) -> Iterator[Case]:
    for index, item in enumerate(data() if items is None else items):
        yield Case(index, Inputs(item))


class Finder(BadCaseSearch):
    """A search in one process, with its report."""

    def report(self, items: Iterable[Case], num_steps: int = 100) -> BadCaseReport:
        found = self.run(error_of, items, num_steps)
        return report_of(self.metrics, self.topk, [found], "cpu")


def search(folder: Path, topk: int, *metrics: str, dump: bool = False) -> tuple[Finder, CaseStore]:
    store = CaseStore(folder, dump)
    chosen = [Metric.get_metric(m) for m in metrics or ("ATOL",)]
    return Finder(chosen, topk, store), store


def test_topk_worst_first_ties_by_index(tmp_path: Path) -> None:
    finder, _ = search(tmp_path, 3)
    report = finder.report(cases())
    assert report.output_to_badcase_info == {"": {"ATOL": [(1, 0.5), (3, 0.5), (2, 0.3)]}} or [
        index for index, _ in report.output_to_badcase_info[""]["ATOL"]
    ] == [1, 3, 2]
    assert report.values[""]["ATOL"] == pytest.approx(ERRORS, rel=1e-6)  # float32 inputs


@pytest.mark.parametrize("dump", [False, True])
def test_only_kept_inputs_are_on_disk(tmp_path: Path, dump: bool) -> None:
    (tmp_path / "9.pt").write_bytes(b"of an earlier search")
    finder, store = search(tmp_path, 1, "ATOL", "SQNR", dump=dump)
    with store.replacing():
        report = finder.report(cases())
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["1.pt"]
    assert report.indices == [1]
    assert torch.equal(store.load(1).inputs.args[0], data()[1])
    assert torch.equal(CaseStore(tmp_path).load(1).inputs.args[0], data()[1])


def test_num_steps_limits_and_generators_are_consumed_once(tmp_path: Path) -> None:
    finder, _ = search(tmp_path, 1)
    report = finder.report(cases(), 1)
    # float32 scale or value against the float64 formula: the last bits differ
    assert report.values[""]["ATOL"] == pytest.approx([0.1], rel=1e-6)


def test_nan_is_the_worst_and_empty_outputs_are_not_available(tmp_path: Path) -> None:
    """A06."""
    items = [torch.full((2,), 5.0), torch.full((2,), math.nan), torch.zeros(0)]
    finder, _ = search(tmp_path, 2)
    report = finder.report(cases(items))
    (first, second) = report.output_to_badcase_info[""]["ATOL"]
    assert first[0] == 1
    assert math.isnan(first[1])
    assert second == (0, 5.0)
    assert report.values[""]["ATOL"][2] is None
    assert report.statistics()[0]["cases"] == 2
    assert math.isnan(report.statistics()[0]["worst"])


def test_no_data_and_no_topk_are_errors(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no case with a float output"):
        search(tmp_path, 1)[0].report(cases([]))
    with pytest.raises(AnalysisError, match="topk must be at least 1, got 0"):
        search(tmp_path, 0)


def test_files_hold_plain_containers_and_give_the_original_classes_back(tmp_path: Path) -> None:
    x, y, z = torch.rand(3, 2)
    inputs = Inputs(Pair(x, y), Detection(y, {"k": [1, None, "s"]}, z), mask={"m": x})
    case = Case(4, inputs, {"baseline": {"h": [x, None]}, "analysis": {"h": (y, 2)}})
    store = CaseStore(tmp_path)
    store.keep(case, {4})
    store.flush()
    assert store.load(4).inputs.args[1].aux == {"k": [1, None, "s"]}
    before = x.clone()
    x.fill_(7)  # a loader fills its tensor again
    assert torch.equal(store.load(4).inputs.args[0].score, before)
    x.copy_(before)
    content = torch.load(tmp_path / "4.pt")  # torch's safe default reads it
    assert torch.equal(content["args"][0]["score"], x)
    assert content["args"][1]["aux"] == {"k": [1, None, "s"]}
    loaded = CaseStore(tmp_path).load(4)
    pair, detection = loaded.inputs.args
    assert isinstance(pair, Pair)
    assert torch.equal(pair.index, y)
    assert isinstance(detection, Detection)
    assert detection.aux == {"k": [1, None, "s"]}
    assert torch.equal(detection.ids, z)
    assert torch.equal(loaded.inputs.kwargs["mask"]["m"], x)
    assert torch.equal(loaded.of("baseline")["h"][0], x)
    assert loaded.of("analysis")["h"][1] == 2
    with pytest.raises(AnalysisError, match=r"5\.pt is missing"):
        store.load(5)


def test_cases_by_metric_output_and_hand(tmp_path: Path) -> None:
    finder, store = search(tmp_path, 2, "ATOL", "COSINE")
    report = finder.report(cases())
    bad = BadCases(store, report)
    assert bad.indices(Metric.ATOL, "") == [1, 3]
    assert bad.indices(Metric.MSE, "") == report.indices  # not searched: all that there are
    assert bad.choose(None, Metric.ATOL, None).index == 1
    assert bad.choose(3, Metric.ATOL, None).index == 3
    with pytest.raises(AnalysisError, match="index 2 is not in the bad case report; it has"):
        bad.choose(2, Metric.ATOL, None)
    with pytest.raises(AnalysisError, match="no metric MSE; it was searched with"):
        bad.choose(None, Metric.MSE, None)
    with pytest.raises(AnalysisError, match="no output 'x' in the report"):
        bad.choose(None, Metric.ATOL, "x")
    by_hand = BadCases(store, by_hand=Case(0, Inputs(torch.rand(1))))
    assert by_hand.indices(Metric.ATOL) == [0]
    with pytest.raises(AnalysisError, match="the case set by hand is 0"):
        by_hand.choose(1, Metric.ATOL, None)
    with pytest.raises(AnalysisError, match="no bad case: call auto_find_bad_case"):
        BadCases(store).choose(None, Metric.ATOL, None)


class Stop(Exception):
    pass


def stopping() -> Iterator[Case]:
    yield from itertools.islice(cases(), 2)
    raise Stop


def test_what_was_dumped_before_an_error_can_be_read(tmp_path: Path) -> None:
    finder, store = search(tmp_path, 5, dump=True)
    with pytest.raises(Stop), store.replacing():
        finder.report(stopping())
    for index in (0, 1):
        assert torch.equal(CaseStore(tmp_path).load(index).inputs.args[0], data()[index])


@pytest.mark.parametrize("dump", [False, True])
def test_an_error_brings_the_files_of_the_earlier_search_back(tmp_path: Path, dump: bool) -> None:
    folder = tmp_path / "badcase"
    first = CaseStore(folder)
    first.keep(Case(0, Inputs(torch.full((1,), 7.0))), {0})
    first.flush()
    finder, store = search(folder, 5, dump=dump)
    with pytest.raises(Stop), store.replacing():
        finder.report(stopping())
    assert [p.name for p in folder.iterdir()] == ["0.pt"]
    assert CaseStore(folder).load(0).inputs.args[0].item() == 7
    assert [p.name for p in tmp_path.iterdir()] == ["badcase"]


def test_what_a_file_cannot_hold_is_there_as_text(tmp_path: Path) -> None:
    store = CaseStore(tmp_path)
    store.keep(Case(0, Inputs(torch.ones(1), dtype=torch.float16)), {0})
    store.flush()
    assert CaseStore(tmp_path).load(0).inputs.kwargs == {"dtype": "torch.float16"}


def test_a_file_that_holds_no_case_is_named(tmp_path: Path) -> None:
    torch.save({"x": 1}, tmp_path / "3.pt")
    with pytest.raises(AnalysisError, match=r"3\.pt holds no bad case"):
        CaseStore(tmp_path).load(3)


class Noise(nn.Module):
    """Adds numbers far larger than any error of quantization."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + 100 * torch.rand(1, 2)


def test_both_models_draw_the_same_random_numbers(tmp_path: Path) -> None:
    net, data = Noise().eval(), [torch.rand(1, 2) for _ in range(3)]
    qa = QuantAnalysis(net, calibrated(net, *data * 30), "fake_quant", out_dir=str(tmp_path))
    values = qa.auto_find_bad_case(data).values[""]["ATOL"]
    # a step is 0.8, and what lies beyond the averaged range is clipped, by a tenth of it at most;
    # with other draws the values are 20 and more
    assert all(value is not None and value < 10 for value in values)
