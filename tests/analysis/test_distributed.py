"""Several processes give the bad cases, tables and files of one (tuning tool document)."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from qtune.analysis.ranks import Ranks
from qtune.errors import AnalysisError
from qtune.nn.prepared import PreparedModel
from qtune.profiler import Metric, QuantAnalysis
from tests.analysis.nets import Block, calibrated
from tests.ranks import RANKS, on_ranks

SCRIPT = Path(__file__).with_name("shared_out.py")
SEEN = "seen_by_{}.txt"
BATCHES = [torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(6)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    launch([sys.executable, str(SCRIPT), str(folder), "--alone"])
    return folder


def launch(command: list[str]) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    environment = {
        **os.environ,
        "QTUNE_RUN_DIR": "",
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": port,
        "PYTHONPATH": str(SCRIPT.parents[2]),
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
def test_a_script_gives_the_files_of_one_process(
    alone: Path, tmp_path: Path, launcher: str
) -> None:
    options = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}"]
    by_torchrun = options if launcher == "torchrun" else []
    launch([sys.executable, *by_torchrun, str(SCRIPT), str(tmp_path / "out")])
    expected, found = texts(alone), texts(tmp_path / "out")
    seen = found.pop(SEEN.format(1))
    assert seen == expected[SEEN.format(0)]
    assert found == expected
    assert len([name for name in expected if name.endswith("sensitive_ops.csv")]) == 6
    cases = sorted(path.name for path in (tmp_path / "out" / "badcase").iterdir())
    assert cases == sorted(path.name for path in (alone / "badcase").iterdir())
    for name in cases:
        one, other = (torch.load(folder / "badcase" / name) for folder in (alone, tmp_path / "out"))
        assert torch.equal(one["args"][0], other["args"][0])
    assert not list((tmp_path / "out").glob(".badcase*"))


def texts(folder: Path) -> dict[str, str]:
    kinds = (".txt", ".csv", ".html")
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix in kinds}


def model() -> tuple[nn.Module, PreparedModel]:
    torch.manual_seed(0)
    net = Block().eval()
    return net, calibrated(net, *BATCHES)


def session(folder: Path, **options: Any) -> QuantAnalysis:
    return QuantAnalysis(*model(), "fake_quant", out_dir=str(folder), **options)


def found(qa: QuantAnalysis, data: list[Tensor]) -> Any:
    report = qa.auto_find_bad_case(data, topk=2)
    lists = qa.sensitivity(Metric.L1)
    return report.values, report.output_to_badcase_info, lists


def searched(rank: int, folder: Path) -> Any:
    return found(session(folder), BATCHES[rank::RANKS])


def test_v1_rows_and_the_report_are_those_of_one_process(tmp_path: Path) -> None:
    first, second = on_ranks(searched, tmp_path / "ranks", tmp_path / "out")
    assert first == second == found(session(tmp_path / "alone"), BATCHES)


def uneven(rank: int, folder: Path) -> Any:
    return session(folder).auto_find_bad_case(BATCHES[:5][rank::RANKS], topk=3).values


def test_one_process_may_have_more_data_than_the_other(tmp_path: Path) -> None:
    first, second = on_ranks(uneven, tmp_path / "ranks", tmp_path / "out")
    expected = session(tmp_path / "alone").auto_find_bad_case(BATCHES[:5], topk=3).values
    assert first == second == expected


def with_one_loss(rank: int, folder: Path) -> Any:
    Metric.register("shared_loss", False, "all")(lambda a, b: F.mse_loss(b, a))
    qa = session(folder, metric_list=["shared_loss"])
    qa.auto_find_bad_case(BATCHES[rank::RANKS] if rank >= 0 else BATCHES, topk=3)
    tables = qa.sensitivity(
        "shared_loss", use_sensitivity_v2=True, sensitivity_method="grad_x_error"
    )
    Metric.unregister("shared_loss")
    return [table.to_dict() for table in tables["all"]]


def test_gradients_share_out_the_cases(tmp_path: Path) -> None:
    first, second = on_ranks(with_one_loss, tmp_path / "ranks", tmp_path / "out")
    assert first == second == with_one_loss(-1, tmp_path / "alone")
    assert len(first) == 3


def by_hand(rank: int, folder: Path) -> Any:
    net, calib = model()
    wrapped = DistributedDataParallel(calib)
    qa = QuantAnalysis(net, wrapped, "fake_quant", out_dir=str(folder))
    qa.set_bad_case(BATCHES[rank])
    qa.run()
    layers = qa.compare_per_layer()
    ranked = qa.sensitivity(use_sensitivity_v2=True)[""][0].to_dict()
    qa.clean()
    return layers.rows, ranked


def test_a_case_set_by_hand_is_the_first_processes_and_ddp_is_taken_off(tmp_path: Path) -> None:
    first, second = on_ranks(by_hand, tmp_path / "ranks", tmp_path / "out")
    qa = session(tmp_path / "alone")
    qa.set_bad_case(BATCHES[0])
    qa.run()
    rows, ranked = first
    assert second == first
    assert list(rows) == list(qa.compare_per_layer().rows)
    assert ranked == qa.sensitivity(use_sensitivity_v2=True)[""][0].to_dict()


def loaded(rank: int, folder: Path, link: str) -> Any:
    qa = session(folder)
    qa.load_bad_case(link)
    assert qa.badcase_report is not None
    return qa.badcase_report.indices, qa.sensitivity(use_sensitivity_v2=True)[""][0].to_dict()


def test_the_first_process_downloads_and_all_load(tmp_path: Path) -> None:
    qa = session(tmp_path / "source")
    qa.auto_find_bad_case(BATCHES)
    handler = partial(Quiet, directory=str(tmp_path / "source"))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        link = f"http://localhost:{server.server_port}"
        first, second = on_ranks(loaded, tmp_path / "ranks", tmp_path / "out", link)
        server.shutdown()
        thread.join()
    assert first == second
    assert first[0] == qa.badcase_report.indices  # type: ignore[union-attr]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def failing(rank: int, folder: Path, where: str) -> Any:
    """Text of the error of this process; ``where``: what fails in process 1 alone."""
    net, calib = model()

    def data() -> Any:
        yield BATCHES[0]
        if rank == 1 and where == "data":
            raise OSError("disk is gone")
        yield BATCHES[1]

    def metric(a: Tensor, b: Tensor) -> float:
        if rank == 1 and where == "metric":
            raise ValueError("no such label")
        return float((a - b).abs().max())

    Metric.register("failing", False, "pertensor")(metric)
    qa = QuantAnalysis(net, calib, "fake_quant", out_dir=str(folder), metric_list=["failing"])
    try:
        qa.auto_find_bad_case(data())
    except (AnalysisError, OSError, ValueError) as error:
        return type(error).__name__, str(error)
    finally:
        Metric.unregister("failing")
    return "no error"


@pytest.mark.parametrize(
    ("where", "own"),
    [
        ("data", ("OSError", "disk is gone")),
        ("metric", ("ValueError", "no such label")),
    ],
)
def test_an_error_in_one_process_stops_all(
    tmp_path: Path, where: str, own: tuple[str, str]
) -> None:
    first, second = on_ranks(failing, tmp_path / "ranks", tmp_path / "out", where)
    assert second == own
    assert first == (
        "AnalysisError",
        "auto_find_bad_case: process 1 failed, so all stop. There: " + ": ".join(own),
    )


def test_a_loader_that_does_not_share_the_data_out_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranks = Ranks(1, 2)
    caplog.set_level("WARNING", "qtune.analysis")
    assert ranks.count_of(DataLoader(list(range(5)))) is None  # type: ignore[arg-type]
    assert "each of the 2 processes searches all the data" in caplog.text
    assert [ranks.index(step) for step in range(3)] == [1, 3, 5]
    assert ranks.share("abcde") == "bd"
