"""``qtune profile``: the numbers of every operator's tensors, in every stage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qtune.bpu import compiler
from qtune.testing import Stages

from .conftest import Run, call

INFINITE = """
import torch
def data():
    return [torch.zeros(1, 3, 8, 8), torch.full((1, 3, 8, 8), float("inf"))]
"""


def test_the_numbers_are_those_of_the_model(run: Run) -> None:
    import nets  # type: ignore[import-not-found]

    torch.manual_seed(0)
    net = nets.Net().eval()
    torch.save(net.state_dict(), "w.pt")
    x = torch.randn(1, 3, 8, 8)
    torch.save([torch.zeros_like(x), x], "x.pt")
    words = call("profile", "nets:Net", "--checkpoint", "w.pt", "--stage", "float", data="x.pt")
    done = run(*words, "--case", "1", "--json")
    assert "calibration" not in done.json
    rows = {(r["module"], r["attr"]): r for r in done.json["result"]["tensors"]}
    expected = net.conv1(x).detach()
    assert rows["conv1", "output"]["min"] == float(expected.min())
    assert rows["conv1", "output"]["max"] == float(expected.max())
    assert rows["conv1", "weight"]["shape"] == [24, 3, 3, 3]


@pytest.mark.parametrize(
    ("stage", "dtype"), [("calib", "qint8"), ("qat_bc", "qint8"), ("quantized_bc", "qint8")]
)
def test_every_stage_has_the_dtypes_and_names(run: Run, stage: str, dtype: str) -> None:
    done = run(*call("profile", "nets:make", "--stage", stage, "--json"))
    rows = done.json["result"]["tensors"]
    assert [r["dtype"] for r in rows if (r["module"], r["attr"]) == ("relu1", "output")] == [dtype]


def test_a_bc_file(run: Run, folder: Path) -> None:
    import nets

    batches = [torch.randn(2, 3, 8, 8)]
    stages = Stages(nets.Net(), batches, march="nash-e")
    compiler.save(stages.quantized_bc, folder / "int.bc")
    torch.save(batches, folder / "x.pt")
    done = run("profile", "int.bc", "--data", "x.pt", "--json", "--prefix", "relu1")
    labelled = run("profile", "int.bc", "--data", "nets:batches", "--json")
    assert labelled.status == 0, labelled.err
    refused = run("profile", "int.bc", "--data", "x.pt", "--stage", "float")
    assert refused.err == "qtune profile: --stage: int.bc is one stage already\n"
    assert (done.json["stage"], done.json["march"]) == ("quantized", "nash-e")
    assert {row["module"] for row in done.json["result"]["tensors"]} == {"relu1"}


def test_text_has_the_largest_ranges_and_the_file_has_all(run: Run, folder: Path) -> None:
    done = run(*call("profile", "nets:Planted", "--top", "1", "--stack"))
    assert "Tensors, the largest range first (1 of 22):" in done.out
    assert "| conv1 " in done.out
    text = (folder / "horizon_quant_analysis" / "profile" / "statistic.txt").read_text()
    assert "_output_0_dequant" in text
    assert "nets.py:" in text  # the column that --stack asks for


def test_infinity_is_shown_and_can_fail(run: Run, folder: Path) -> None:
    (folder / "infinite.py").write_text(INFINITE)
    words = call("profile", "nets:make", "--stage", "float", data="infinite:data")
    assert run(*words, "--fail-on", "nonfinite").status == 0
    words = (*words, "--case", "1")
    done = run(*words)
    assert (done.status, "Tensors, with NaN or infinity" in done.out) == (0, True)
    done = run(*words, "--fail-on", "nonfinite", "--json")
    assert (done.status, done.json["gates"][0]["tensor"]) == (1, "conv1 input")


def test_histograms_for_tensorboard(run: Run, folder: Path) -> None:
    done = run(*call("profile", "nets:make", "--tensorboard", "--prefix", "fc", "--json"))
    assert done.status == 0, done.err
    written = folder / done.json["files"][1]
    assert written.name == "tensorboard"
    assert list(written.rglob("*tfevents*"))


def test_what_does_not_fit_is_said(run: Run) -> None:
    words = call("profile", "nets:make")
    assert run(*words, "--case", "9").err.endswith("--case: nets:batches has no item 9\n")
    assert "it needs --tensorboard" in run(*words, "--per-channel").err
    assert "no operator fits prefixes ('cnv',)" in run(*words, "--prefix", "cnv").err
