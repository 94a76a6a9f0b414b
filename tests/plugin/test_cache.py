"""Artefacts of qtune_stages: built once for all workers, kept between runs, cleared on demand."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_qtune import cache

PROJECT = """
import pytest
import torch
from torch import nn
from pytest_qtune import assert_consistency, assert_no_shared_ops, assert_sensitivity_below

X = torch.linspace(-1, 1, 2 * 3 * 36).reshape(2, 3, 6, 6)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.conv(x)){edit}

@pytest.fixture(scope="session")
def stages(qtune_stages):
    with open({log}, "a") as file:
        file.write("session\\n")
    return qtune_stages(Net, lambda: [X, 2 * X], march="nash-e")

@pytest.mark.parametrize("index", range(4))
def test_integers(stages, index):
    assert_consistency(stages.qat_bc, stages.quantized_bc, inputs=X, max_qscale_diff=1)

def test_structure(stages):
    assert_no_shared_ops(stages.calib)
"""


@pytest.fixture
def net(pytester: pytest.Pytester, tmp_path: Path) -> pytest.Pytester:
    write(pytester)
    return pytester


def write(pytester: pytest.Pytester, edit: str = "") -> None:
    text = PROJECT.replace("{edit}", edit).replace("{log}", repr(str(log(pytester))))
    (pytester.path / "test_net.py").write_text(text)


def log(pytester: pytest.Pytester) -> Path:
    return pytester.path.parent / f"{pytester.path.name}.log"


def counts(result: pytest.RunResult) -> tuple[int, int]:
    """(built, read) as the terminal says."""
    result.assert_outcomes(passed=5)
    found = re.search(r"artefacts: (\d+) built, (\d+) read", result.stdout.str())
    assert found is not None
    return int(found[1]), int(found[2])


def test_cache_over_workers_runs_and_edits(net: pytest.Pytester) -> None:
    """One story, because every run costs: calib.pt, qat.bc and quantized.bc are three artefacts."""
    built, _ = counts(net.runpytest("--qtune", "-n2", "--cache-clear"))
    assert built >= 3  # pytest's own flag is carried out by every worker that starts
    assert log(net).read_text().count("session") == 2  # both workers asked
    counts(net.runpytest("--qtune"))
    assert counts(net.runpytest("--qtune")) == (0, 3)
    assert sorted(p.name for p in net.path.iterdir() if p.name != "__pycache__") == [
        ".pytest_cache",
        "test_net.py",
    ]  # nothing of prepare's in the user's folder
    write(net, edit=" + 1")
    assert counts(net.runpytest("--qtune"))[0] == 3
    write(net)
    assert counts(net.runpytest("--qtune")) == (0, 3)
    assert counts(net.runpytest("--qtune", "--qtune-cache-clear"))[0] == 3


def test_damaged_entry_is_built_again(net: pytest.Pytester) -> None:
    assert counts(net.runpytest("--qtune"))[0] == 3
    (path,) = net.path.glob(".pytest_cache/d/qtune/*/quantized.bc")
    path.write_bytes(path.read_bytes()[:100])
    assert counts(net.runpytest("--qtune"))[0] == 1


SUITE = """
import pytest
import torch
from torch import nn
from pytest_qtune import assert_bit_exact, assert_consistency, assert_no_shared_ops

X = torch.linspace(-1, 1, 2 * 3 * 36).reshape(2, 3, 6, 6)
MODELS = {
    "plain": lambda: nn.Conv2d(3, 4, 3),
    "relu": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()),
    "pool": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
}

@pytest.fixture(scope="session", params=MODELS)
def stages(qtune_stages, request):
    return qtune_stages(MODELS[request.param], [X], march="nash-e", name=request.param)

@pytest.mark.parametrize("index", range(8))
def test_integers(stages, index):
    assert_consistency(stages.qat_bc, stages.quantized_bc, inputs=X + index, max_qscale_diff=1)

def test_structure(stages):
    assert_no_shared_ops(stages.calib)

def test_kernels(stages):
    assert_bit_exact(stages.quantized_bc, inputs=X, against="reference")
"""


def artefacts(pytester: pytest.Pytester, *args: str) -> tuple[int, set[str]]:
    """How many a run of the suite built, and the processes of its tests, as its JSON says."""
    result = pytester.runpytest("--qtune", "--qtune-json=q.json", *args)
    result.assert_outcomes(passed=30)
    data = json.loads((pytester.path / "q.json").read_text())
    return data["artefacts"]["built"], {test["process"] for test in data["run"]["tests"]}


def test_three_models_with_thirty_tests_are_built_once_by_two_workers(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_models=SUITE)
    kinds = 3  # calib.pt, qat.bc, quantized.bc
    assert artefacts(pytester, "-n2") == (3 * kinds, {"gw0", "gw1"})
    assert artefacts(pytester) == (0, {"main"})
    assert artefacts(pytester, "--qtune-cache-clear") == (3 * kinds, {"main"})


def test_a_cache_folder_that_cannot_be_made_is_replaced_by_the_temporary_one(
    net: pytest.Pytester,
) -> None:
    place = net.path / ".pytest_cache" / "d"
    place.mkdir(parents=True)
    (place / "qtune").write_text("a file of somebody else")
    base = net.path / "base"
    assert counts(net.runpytest("--qtune", f"--basetemp={base}"))[0] == 3
    assert len(list(base.glob("qtune-artefacts/*/quantized.bc"))) == 1
    assert (place / "qtune").read_text() == "a file of somebody else"


def test_a_full_disk_costs_the_cache_not_the_tests(
    net: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("qtune.testing.store.write_with", no_space)
    assert counts(net.runpytest("--qtune")) == (3, 0)
    assert not list(net.path.glob(".pytest_cache/d/qtune/*/*.bc"))


def test_without_the_cache_plugin_artefacts_lie_in_the_temporary_folder(
    net: pytest.Pytester,
) -> None:
    base = net.path / "base"
    result = net.runpytest("--qtune", "-p", "no:cacheprovider", f"--basetemp={base}")
    assert counts(result)[0] == 3
    assert not (net.path / ".pytest_cache").exists()
    assert len(list(base.glob("qtune-artefacts/*/quantized.bc"))) == 1


@pytest.mark.parametrize("worker", [{}, {"workerinput": {}}], ids=["controller", "worker"])
def test_without_the_cache_plugin_workers_share_the_folder_of_the_controller(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    worker: dict[str, Any],
) -> None:
    base = tmp_path_factory.getbasetemp()
    own = base / "popen-gw0" if worker else base
    monkeypatch.setattr(tmp_path_factory, "getbasetemp", lambda: own)
    config: Any = SimpleNamespace(cache=None, **worker)
    assert cache.folder(config, tmp_path_factory) == base / "qtune-artefacts"


@pytest.mark.parametrize("fixture", ["qtune_stages", "qtune_onnx_stages"])
def test_no_march_anywhere_is_one_clear_error(fixture: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"def test_a({fixture}):\n    {fixture}(None, None)\n")
    result = pytester.runpytest("--qtune")
    result.stdout.fnmatch_lines(
        [
            f"E*MarchError: {fixture}: no march is set: pass march=*--qtune-march*qtune_march*",
            "failed without a check: *test_a: *MarchError*",
            "qtune: 0 checks on 0 model(s), 0 failed, 1 test(s) failed without a check",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "args", "ini", "march"),
    [
        ("", (), "qtune_march = nash-b", "nash-b"),
        ("", ("--qtune-march=nash-m",), "qtune_march = nash-b", "nash-m"),
        ("@pytest.mark.qtune(march='nash-p')", ("--qtune-march=nash-m",), "", "nash-p"),
    ],
    ids=["ini", "flag beats ini", "marker beats flag"],
)
def test_march_of_stages(
    pytester: pytest.Pytester, marker: str, args: tuple[str, ...], ini: str, march: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    pytester.makepyfile(
        f"import pytest\n{marker}\ndef test_a(qtune_stages):\n"
        f"    assert qtune_stages(None, None).march == {march!r}\n"
        f"    assert qtune_stages(None, None, march='bayes').march == 'bayes'\n"
    )
    pytester.runpytest(*args).assert_outcomes(passed=1)
