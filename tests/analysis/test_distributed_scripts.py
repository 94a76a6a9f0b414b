"""The script of the tuning tool document, spawned and by torchrun, gives the files of one process.

Seven images by two processes, one of which gets an image twice.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import multiprocessing
from torch.utils.data import DataLoader

from tests.analysis.ranked import as_in_tests
from tests.analysis.shared_out import PROCESSES, STEPS, Images, analyse, one_of_several

pytestmark = pytest.mark.qtune_slow  # new interpreters import torch

SCRIPT = Path(__file__).with_name("shared_out.py")
SEEN = "seen_by_{}.txt"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    with as_in_tests():
        analyse(str(folder), 0, DataLoader(Images(), batch_size=1), STEPS * PROCESSES)
    return folder


def spawned(folder: Path) -> None:
    multiprocessing.spawn(one_of_several, (PROCESSES, str(folder)), nprocs=PROCESSES)


def by_torchrun(folder: Path) -> None:
    options = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}"]
    command = [sys.executable, *options, str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("launch", [spawned, by_torchrun])
def test_a_script_gives_the_files_of_one_process(
    alone: Path, tmp_path: Path, launch: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    for name, value in {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")]),
    }.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "out"
    folder.mkdir()
    launch(folder)  # type: ignore[operator]
    expected, found = texts(alone), texts(folder)
    seen = found.pop(SEEN.format(1))
    assert seen == expected[SEEN.format(0)]
    assert found == expected
    assert len([name for name in expected if name.endswith("sensitive_ops.csv")]) == 6
    cases = sorted(path.name for path in (folder / "badcase").iterdir())
    assert cases == sorted(path.name for path in (alone / "badcase").iterdir())
    for name in cases:
        one, other = (torch.load(where / "badcase" / name) for where in (alone, folder))
        assert torch.equal(one["args"][0], other["args"][0])
    assert not list(folder.glob(".*"))


def texts(folder: Path) -> dict[str, str]:
    kinds = (".txt", ".csv", ".html")
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix in kinds}
