"""An error in one of several processes ends the step in all, none waits, and all can go on."""

from __future__ import annotations

import datetime
import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from qtune.analysis import files, ranks
from qtune.errors import AnalysisError
from qtune.nn.qat import iter_stubs
from qtune.profiler import Metric, QuantAnalysis
from qtune.quantization import FakeQuantState, set_fake_quantize
from tests.analysis.ranked import BATCHES, Place, Scenario, as_in_tests, in_processes, small
from tests.ranks import on_ranks

GOAL = {"metric": Metric.L1, "threshold": 0.0, "max_tuned_stubs": 1}

FAILING: dict[str, tuple[Callable[[Place, QuantAnalysis], Any], list[str]]] = {}
"""What fails in one or all processes, and how each of two ends."""


def ends_with(*errors: str) -> Callable[[Any], Any]:
    def note(function: Any) -> Any:
        FAILING[function.__name__] = function, list(errors)
        return function

    return note


def other(rank: int, text: str, where: str = "auto_find_bad_case") -> str:
    return f"OtherProcessError: {where}: process {rank} failed, so all stop. There: {text}"


@ends_with(other(1, "OSError: disk is gone"), "OSError: disk is gone")
def the_data_of_one(place: Place, qa: QuantAnalysis) -> None:
    def data() -> Any:
        yield BATCHES[0]
        if place.rank == 1:
            raise OSError("disk is gone")

    qa.auto_find_bad_case(data())


@ends_with("KeyboardInterrupt: ", other(0, "KeyboardInterrupt: "))
def ctrl_c_in_one(place: Place, qa: QuantAnalysis) -> None:
    def data() -> Any:
        yield BATCHES[0]
        if place.is_first:
            raise KeyboardInterrupt

    qa.auto_find_bad_case(data())


@ends_with(other(1, "ValueError: no label", "sensitivity"), "ValueError: no label")
def a_metric_in_one(place: Place, qa: QuantAnalysis) -> None:
    def metric(a: Any, b: Any) -> float:
        if place.rank == 1:
            raise ValueError("no label")
        return 0.0

    Metric.register("failing", False, "pertensor")(metric)
    try:
        qa.sensitivity("failing", use_sensitivity_v2=True)
    finally:
        Metric.unregister("failing")


@ends_with(
    "AnalysisError: auto_find_bad_case: topk must be at least 1, got 0", other(0, "Analysis")
)
def an_argument_of_one(place: Place, qa: QuantAnalysis) -> None:
    qa.auto_find_bad_case(place.mine(BATCHES), topk=place.rank)


@ends_with(other(1, "AnalysisError: auto_find_bad_case: "), "AnalysisError: auto_find_bad_case: ")
def a_state_of_one(place: Place, qa: QuantAnalysis) -> None:
    if place.rank == 1:
        set_fake_quantize(place.model, FakeQuantState.CALIBRATION)
    try:
        qa.auto_find_bad_case(place.mine(BATCHES))
    finally:
        set_fake_quantize(place.model, FakeQuantState.VALIDATION)


PARAMETER = "AnalysisError: auto_find_bad_case: the baseline models of processes 0 and 1 are not"


@ends_with(PARAMETER, PARAMETER)
def other_weights_in_one(place: Place, qa: QuantAnalysis) -> None:
    with other_weights(place):
        qa.auto_find_bad_case(place.mine(BATCHES))


@ends_with(*[PARAMETER.replace("auto_find_bad_case", "sensitivity")] * 2)
def ranking_other_weights_in_one(place: Place, qa: QuantAnalysis) -> None:
    with other_weights(place):
        qa.sensitivity()


@contextmanager
def other_weights(place: Place) -> Iterator[None]:
    weight = place.net.get_parameter("conv1.weight").data
    before = weight.clone()
    try:
        weight[0] += place.rank
        yield
    finally:
        weight.copy_(before)


ELSEWHERE = "AnalysisError: auto_find_bad_case: the first process writes to another folder than"


@ends_with(other(1, ELSEWHERE), ELSEWHERE)
def an_own_out_dir_of_each(place: Place, qa: QuantAnalysis) -> None:
    place.session(out_dir=f"{place.folder}{place.rank}").auto_find_bad_case(place.mine(BATCHES))


@ends_with(other(1, "AnalysisError: ", "load_bad_case"), "AnalysisError: ")
def loading_into_an_own_out_dir(place: Place, qa: QuantAnalysis) -> None:
    place.session(out_dir=f"{place.folder}{place.rank}").load_bad_case(str(place.folder))


NOWHERE = "AnalysisError: nowhere"


@ends_with(NOWHERE, other(0, NOWHERE, "load_bad_case"))
def loading_from_nowhere(place: Place, qa: QuantAnalysis) -> None:
    qa.load_bad_case("nowhere")


@ends_with(NOWHERE, other(0, NOWHERE, "set_model_profiler_dir"))
def profiles_from_nowhere(place: Place, qa: QuantAnalysis) -> None:
    qa.set_model_profiler_dir("nowhere", "nowhere")


@ends_with("AnalysisError: ", other(0, "AnalysisError: ", "set_bad_case"))
def a_case_that_is_none(place: Place, qa: QuantAnalysis) -> None:
    qa.set_bad_case({"no": "such", "input": 1})


UNSENT = "AnalysisError: here: the other processes need this value, which can't be pickled"


@ends_with(UNSENT, other(0, UNSENT, "here"))
def a_value_that_cannot_be_sent(place: Place, qa: QuantAnalysis) -> None:
    processes = qa._session.ranks
    with processes.step("here"):
        processes.everywhere("here", (lambda: None) if place.is_first else None)


@ends_with("AnalysisError: run: index 77", other(0, "AnalysisError: run: index 77", "run"))
def an_index_that_is_unknown(place: Place, qa: QuantAnalysis) -> None:
    qa.run(index=77)


TWICE = "AnalysisError: run: give index or metric, not both"


@ends_with(TWICE, TWICE)
def arguments_that_exclude_each_other(place: Place, qa: QuantAnalysis) -> None:
    qa.run(index=0, metric="L1")


BEFORE = "AnalysisError: compare_per_layer: both models must have run"


@ends_with(BEFORE, other(0, BEFORE, "compare_per_layer"))
def comparing_before_a_run(place: Place, qa: QuantAnalysis) -> None:
    qa.compare_per_layer()


@ends_with("AnalysisError: sensitivity: no output", "AnalysisError: sensitivity: no output")
def an_output_that_is_unknown(place: Place, qa: QuantAnalysis) -> None:
    qa.sensitivity(output_names=("mask",))


@ends_with("FileNotFoundError: ", other(0, "FileNotFoundError: ", "tune_bad_case"))
def tuning_without_tables(place: Place, qa: QuantAnalysis) -> None:
    qa.tune_bad_case({"score": GOAL})


FULL = "OSError: [Errno 28] no space"


@ends_with(FULL, other(0, FULL))
def a_full_disk_of_the_first(place: Place, qa: QuantAnalysis) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_report", full)
        qa.auto_find_bad_case(place.mine(BATCHES))


APART = (
    "OtherProcessError: the processes are not at the same place: run in process 0, sensitivity in "
    "process 1; call every method"
)


@ends_with(APART, APART)
def a_method_of_one_process_only(place: Place, qa: QuantAnalysis) -> None:
    if place.is_first:
        qa.run()
    qa.sensitivity()


def tried(name: str) -> Scenario:
    """The error of this process, the report and a table afterwards, and what was changed."""
    function, _ = FAILING[name]

    def scenario(place: Place) -> Any:
        qa = place.session()
        qa.auto_find_bad_case(place.mine(BATCHES))
        before = {k: v.clone() for k, v in place.model.state_dict().items()}
        states = [fq.state for _, _, fq in iter_stubs(place.model)]
        try:
            function(place, qa)
            text = "no error"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        qa.auto_find_bad_case(place.mine(BATCHES))
        table = qa.sensitivity("L1", prefixes=("head",), use_sensitivity_v2=True)["score"][0]
        after = place.model.state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)
        assert states == [fq.state for _, _, fq in iter_stubs(place.model)]
        left = [path.name for path in place.folder.glob(".*")] if place.is_first else []
        return text, str(qa.badcase_report), table.to_dict(), left

    return scenario


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    scenarios = {name: tried(name) for name in FAILING}
    return in_processes(2, scenarios, tmp_path_factory.mktemp("ended"))


@pytest.mark.parametrize("name", FAILING)
def test_an_error_ends_the_step_in_all_and_the_next_one_works(
    name: str, ended: dict[str, list[Any]]
) -> None:
    found = ended[name]
    assert not [each for each in found if isinstance(each, str)], found
    for (text, *_), expected in zip(found, FAILING[name][1], strict=True):
        assert text.startswith(expected)
    _, report, table, _ = ended[next(iter(FAILING))][0]
    assert [each[1:3] for each in found] == [(report, table)] * 2
    assert found[0][3] == []


def with_other_buffers(place: Place) -> list[str]:
    place.net.register_buffer("count", torch.tensor(place.rank))
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("qtune.analysis").addHandler(handler)
    place.session().auto_find_bad_case(place.mine(BATCHES))
    return said


def test_the_first_process_says_that_buffers_differ(tmp_path: Path) -> None:
    first, second = in_processes(2, {"buffers": with_other_buffers}, tmp_path)["buffers"]
    assert first == [
        "auto_find_bad_case: buffer 'count' of the baseline models differs in processes 0 and 1; "
        "load the same checkpoint in every process"
    ]
    assert second == []


@pytest.mark.parametrize(
    ("comes", "error"),
    [
        (True, "OtherProcessError: clean: the other processes don't answer"),
        (False, "AnalysisError: QuantAnalysis: the other processes did not come within 0:00:01"),
    ],
)
def test_a_process_that_is_not_there_is_an_error_in_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool, error: str
) -> None:
    with as_in_tests():
        monkeypatch.setattr(ranks, "MEETING", datetime.timedelta(seconds=60 if comes else 1))
        given = (tmp_path, comes, *small())
        multiprocessing.start_processes(_one_ends, given, 2, start_method="fork")
    assert (tmp_path / "said").read_text().startswith(error)


def cleaned(rank: int, qa: QuantAnalysis) -> str:
    with pytest.raises(AnalysisError) as caught:
        qa.clean()
    return str(caught.value)


def test_an_analysis_made_before_the_processes_met_is_refused(tmp_path: Path) -> None:
    with as_in_tests():
        qa = QuantAnalysis(*small(), "fake_quant", out_dir=str(tmp_path / "out"))
        for text in on_ranks(cleaned, tmp_path / "ranks", qa):
            assert text.startswith("clean: this QuantAnalysis was made before init_process_group")


def _one_ends(rank: int, folder: Path, comes: bool, *models: Any) -> None:
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        if rank == 0 or comes:
            qa = QuantAnalysis(*models, "fake_quant", out_dir=str(folder / "out"))
        if rank == 0:
            qa.clean()
    except Exception as error:
        (folder / "said").write_text(f"{type(error).__name__}: {error}")
    os._exit(0)
