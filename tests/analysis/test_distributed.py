"""Several processes give the bad cases, tables and files of one (tuning tool document)."""

from __future__ import annotations

import contextlib
import http.server
import io
import math
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from qtune.profiler import Metric, ModelProfiler, QuantAnalysis, tune
from qtune.quantization import prepare
from qtune.utils.check_model import check_qat_model
from tests.analysis.nets import calibrated
from tests.analysis.ranked import BATCHES, Place, Scenario, alone, in_processes, small

ByRank = dict[str, list[Any]]
RANKED: dict[str, Scenario] = {}
"""What gives the same in every process, and in one."""


BY_THREE = (
    "fewer_data_than_processes",
    "a_sampler_that_gives_items_twice",
    "gradients",
    "every_method_on_a_case_set_by_hand",
)


def same_as_alone(scenario: Scenario) -> Scenario:
    RANKED[scenario.__name__] = scenario
    return scenario


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return alone(RANKED, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> ByRank:
    return in_processes(2, RANKED | OWN, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def by_three(tmp_path_factory: pytest.TempPathFactory) -> ByRank:
    return in_processes(
        3, {name: RANKED[name] for name in BY_THREE}, tmp_path_factory.mktemp("three")
    )


def files_of(folder: Path) -> dict[str, str]:
    """Names of all files, with the text of those that are text."""
    texts = (".txt", ".csv", ".html")
    return {
        str(path.relative_to(folder)): path.read_text() if path.suffix in texts else ""
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def report_and_files(place: Place, qa: QuantAnalysis, *more: Any) -> Any:
    return (repr(qa.badcase_report), *more), written(place)


def written(place: Place) -> dict[str, str]:
    """What the first process alone looks at, so that no other one is still writing."""
    files = files_of(place.folder) if place.is_first else {}
    return {name: text for name, text in files.items() if "/rank" not in name}


@same_as_alone
def report_and_v1_rows(place: Place) -> Any:
    qa = place.session()
    qa.auto_find_bad_case(place.mine(BATCHES), topk=2)
    rows = qa.sensitivity(Metric.L1)
    return report_and_files(place, qa, rows)


@same_as_alone
def more_data_in_one_process_and_a_topk_beyond_them(place: Place) -> Any:
    qa = place.session()
    qa.auto_find_bad_case(iter(place.mine(BATCHES[:5])), topk=9)
    return report_and_files(place, qa)


@same_as_alone
def fewer_data_than_processes(place: Place) -> Any:
    qa = place.session()
    qa.auto_find_bad_case(place.mine(BATCHES[:1]))
    return report_and_files(place, qa)


@same_as_alone
def a_sampler_that_gives_items_twice(place: Place) -> Any:
    data: Any = BATCHES[:5]
    sampler = DistributedSampler(data, place.count, place.rank, shuffle=False)
    qa = place.session()
    qa.auto_find_bad_case(DataLoader(data, 1, sampler=sampler, collate_fn=lambda x: x[0]), topk=5)
    return report_and_files(place, qa)


@same_as_alone
def a_stream_of_each_process_and_a_bound(place: Place) -> Any:
    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Any:
            return iter(place.mine(BATCHES))

    qa = place.session()
    qa.auto_find_bad_case(DataLoader(Stream(), batch_size=None), num_steps=6 // place.count)
    return report_and_files(place, qa)


@same_as_alone
def values_that_are_nan(place: Place) -> Any:
    calls = iter(place.mine([0.5, math.nan, 2.0, math.nan, 1.0, 3.0]))
    Metric.register("given", False, "all")(lambda a, b: next(calls))
    try:
        qa = place.session(metric_list=["given", "L1"])
        qa.auto_find_bad_case(place.mine(BATCHES), topk=3)
        return report_and_files(place, qa)
    finally:
        Metric.unregister("given")


@same_as_alone
def gradients(place: Place) -> Any:
    Metric.register("shared_loss", False, "all")(lambda a, b: F.mse_loss(b, a))
    try:
        qa = place.session(metric_list=["shared_loss"], post_process=lambda out: out["score"])
        qa.auto_find_bad_case(place.mine(BATCHES), topk=3)
        tables = qa.sensitivity(
            "shared_loss", use_sensitivity_v2=True, sensitivity_method="grad_x_error"
        )
        return report_and_files(place, qa, [table.to_dict() for table in tables["all"]])
    finally:
        Metric.unregister("shared_loss")


@same_as_alone
def every_method_on_a_case_set_by_hand(place: Place) -> Any:
    model = DistributedDataParallel(place.model) if place.count > 1 else place.model
    qa = QuantAnalysis(place.net, model, "fake_quant", out_dir=str(place.folder))
    qa.set_bad_case(BATCHES[place.rank])  # that of the first counts
    qa.run()
    layers = qa.compare_per_layer()
    tables = qa.sensitivity(use_sensitivity_v2=True)
    goal = {"metric": Metric.L1, "threshold": 0.0, "max_tuned_stubs": 2}
    tuned = qa.tune_bad_case({"score": goal})
    again = prepare(place.net, BATCHES[0], tuned)
    dtypes = {name: str(fq.dtype) for name, fq in again.named_modules() if hasattr(fq, "dtype")}
    qa.save_bad_case()
    qa.load_bad_case(str(place.folder / "badcase.pt"))
    qa.run()
    qa.clean()
    texts = str(layers), str(tables["score"][0]), str(tuned)
    return (texts, tuned.ports, dtypes), written(place)


@same_as_alone
def calls_of_the_older_toolchain(place: Place) -> Any:
    qa = place.session()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        qa.auto_find_bad_case(place.mine(BATCHES), 6, "Cosine")  # type: ignore[arg-type]
        qa.run()
        qa.compare_per_layer()
        qa.sensitivity("Cosine", reserve=True)
    return report_and_files(place, qa, [(w.filename == __file__, str(w.message)) for w in said])


@same_as_alone
def what_profilers_saw(place: Place) -> Any:
    folders = [str(place.folder / side) for side in ("baseline", "analysis")]
    for model, folder in zip((place.net, place.model), folders, strict=True):
        with ModelProfiler(model, folder) as profiler:
            model(BATCHES[place.rank])
        assert len(profiler.get_info_manager) == len(
            list((profiler.out_dir / "op_infos").glob("*.opinfo"))
        )
    qa = place.session()
    qa.set_model_profiler_dir(*folders)
    return str(qa.compare_per_layer()), written(place)


@same_as_alone
def tuning_over_data(place: Place) -> Any:
    front = tune(
        place.net, place.model, BATCHES[:2], output="score", max_evaluations=3, latency=False,
        out_dir=place.folder,
    )  # fmt: skip
    return str(front), written(place)


@pytest.mark.parametrize("name", RANKED)
def test_processes_find_what_one_finds(
    name: str,
    expected: dict[str, Any],
    by_two: ByRank,
    by_three: ByRank,
) -> None:
    result, files = expected[name]
    for found in (by_two[name], *([by_three[name]] if name in BY_THREE else [])):
        assert not [each for each in found if isinstance(each, str)]
        assert [each for each, _ in found] == [result] * len(found)
        assert found[0][1] == files


OWN: dict[str, Scenario] = {}
"""What is not the same in every process."""


def own(scenario: Scenario) -> Scenario:
    OWN[scenario.__name__] = scenario
    return scenario


class Smooth(nn.Module):
    """A frame leaves its result to the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.register_buffer("last", torch.zeros(1, 3, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.tanh(self.conv(x) + 0.5 * self.last)
        return self.last


def smooth(folder: Path) -> QuantAnalysis:
    torch.manual_seed(0)
    net = Smooth().eval()
    return QuantAnalysis(net, calibrated(net, *BATCHES), "fake_quant", out_dir=str(folder))


SEQUENCES = BATCHES[:3], BATCHES[3:]


@own
def sequences(place: Place) -> Any:
    qa = smooth(place.folder)
    report = qa.auto_find_bad_case(SEQUENCES[place.rank], cached_attrs=("last",), topk=6)
    return report.values, qa.sensitivity(use_sensitivity_v2=True)[""][-1].to_dict()


def test_each_process_goes_through_a_sequence_of_its_own(by_two: ByRank, tmp_path: Path) -> None:
    first, second = by_two["sequences"]
    assert first == second
    values, table = first
    for rank, sequence in enumerate(SEQUENCES):
        qa = smooth(tmp_path / str(rank))
        alone = qa.auto_find_bad_case(sequence, cached_attrs=("last",), topk=6)
        for metric, found in alone.values[""].items():
            assert values[""][metric][rank::2] == found
    assert table["case"] == "5"  # the last frame of the second sequence, from its own state
    assert table["rows"] == qa.sensitivity(use_sensitivity_v2=True)[""][-1].to_dict()["rows"]


@own
def screen_and_bars(place: Place) -> Any:
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as bars:
        patch.setenv("QTUNE_PROGRESS", "on")
        qa = place.session()
        qa.auto_find_bad_case(place.mine(BATCHES))
        qa.sensitivity()
        with contextlib.redirect_stdout(io.StringIO()) as screen:
            check_qat_model(place.model, BATCHES[0])
    return screen.getvalue(), bars.getvalue()


def test_the_first_process_alone_shows_something(by_two: ByRank) -> None:
    (screen, bars), others = by_two["screen_and_bars"]
    assert screen
    assert "bad cases" in bars
    assert others == ("", "")


@own
def run_files(place: Place) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QTUNE_RUN_DIR", str(place.folder))
        prepare(place.net, BATCHES[0])
    return sorted(path.name for path in place.folder.iterdir() if not path.name.startswith("."))


def test_all_processes_may_write_the_files_of_prepare(by_two: ByRank) -> None:
    first, second = by_two["run_files"]
    assert first == second
    assert "model_check_result.txt" in first


@own
def profiles(place: Place) -> Any:
    with ModelProfiler(place.net, place.folder) as profiler:
        place.net(BATCHES[place.rank])
    (op, *_) = profiler.get_info_manager.values()
    folder = str(profiler.out_dir.relative_to(place.folder))
    return folder, torch.equal(op.input, BATCHES[place.rank])


def test_a_profiler_of_another_process_has_a_folder_of_its_own(
    by_two: ByRank,
) -> None:
    assert by_two["profiles"] == [(".", True), ("rank1", True)]


def loaded(place: Place, link: str) -> Any:
    qa = place.session()
    qa.load_bad_case(link)
    assert qa.badcase_report is not None
    return qa.badcase_report.indices, qa.sensitivity(use_sensitivity_v2=True)["score"][0].to_dict()


def test_the_first_process_downloads_and_all_load(tmp_path: Path) -> None:
    net, model = small()
    qa = QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path / "source"))
    qa.auto_find_bad_case(BATCHES)
    asked: list[str] = []
    handler = partial(Noting, asked, directory=str(tmp_path / "source"))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        link = f"http://localhost:{server.server_port}"
        found = in_processes(2, {"load": partial(loaded, link=link)}, tmp_path)["load"]
        server.shutdown()
        thread.join()
    table = qa.sensitivity(use_sensitivity_v2=True)["score"][0].to_dict()
    assert found == [(qa.badcase_report.indices, table)] * 2  # type: ignore[union-attr]
    assert len(asked) == len(set(asked)) == 1 + len(found[0][0])


class Noting(http.server.SimpleHTTPRequestHandler):
    """Notes what is asked for."""

    def __init__(self, asked: list[str], *args: Any, **options: Any) -> None:
        self.asked = asked
        super().__init__(*args, **options)

    def log_message(self, format: str, *args: Any) -> None:
        self.asked.append(self.path)
