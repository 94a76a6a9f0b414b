"""``qtune compare``: outputs, operators, gates, stages, ``.bc`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from qtune.bpu import compiler
from qtune.profiler import Metric
from qtune.testing import Stages

from .conftest import Run, call

OPERATORS = [
    "_input_0_quant",
    "conv1",
    "relu1",
    "conv2",
    "relu2",
    "_generated_mean_0",
    "fc",
    "_output_0_dequant",
]


def worst(found: dict[str, Any], metric: str) -> float:
    rows = [row for row in found["result"]["outputs"] if row["metric"] == metric]
    value: float = rows[0]["worst"]
    return value


def test_outputs_cases_and_operators(run: Run) -> None:
    done = run(*call("compare", "nets:make", "--json", "--topk", "2"))
    result = done.json["result"]
    assert done.status == 0
    assert [row["metric"] for row in result["outputs"]] == ["L1", "COSINE", "ATOL"]
    assert {row["cases"] for row in result["outputs"]} == {4}
    assert [row["name"] for row in result["operators"]] == OPERATORS
    ranked = [row for row in result["bad_cases"] if row["metric"] == "ATOL"]
    assert [row["rank"] for row in ranked] == [1, 2]
    assert ranked[0]["case"] == result["case"]
    assert ranked[0]["value"] == worst(done.json, "ATOL") >= ranked[1]["value"]


def test_gates_hold_at_the_value_and_fail_beyond_it(run: Run) -> None:
    words = call("compare", "nets:make", "--json")
    found = run(*words).json
    atol, cosine = worst(found, "ATOL"), worst(found, "COSINE")
    within = run(*words, "--max", f"ATOL={atol!r}", "--min", f"COSINE={cosine!r}")
    assert (within.status, [g["ok"] for g in within.json["gates"]]) == (0, [True, True])
    beyond = run(*words, "--max", f"ATOL={atol * 0.99!r}", "--min", f"COSINE={cosine!r}")
    assert (beyond.status, [g["ok"] for g in beyond.json["gates"]]) == (1, [False, True])
    gate = beyond.json["gates"][0]
    assert gate["value"] == atol
    assert (gate["output"], gate["case"]) == ("", found["result"]["case"])
    assert gate["operator"] in OPERATORS


def test_the_failing_line_names_output_case_and_operator(run: Run) -> None:
    done = run(*call("compare", "nets:make", "--max", "ATOL=0"))
    line = next(line for line in done.out.splitlines() if line.startswith("FAIL"))
    assert line.startswith("FAIL --max ATOL=0: got ")
    assert ", limit <= 0 (output '', case " in line
    assert ", operator " in line


def test_own_errors_blame_the_planted_activation(run: Run) -> None:
    done = run(*call("compare", "nets:Planted", "--max", "ATOL=0", "--json"))
    assert done.json["gates"][0]["operator"] in ("conv1", "relu1")


@pytest.mark.parametrize(
    ("stages", "bound"),
    [("pre_export", 1e-6), ("export", 0.0), ("convert", 1e-5)],
)
def test_later_stages_hardly_differ(run: Run, stages: str, bound: float) -> None:
    """No tables in this net, and codes are equal: what is left is float32 rounding."""
    done = run(*call("compare", "nets:make", "--type", stages, "--json", "--max", f"ATOL={bound}"))
    assert done.status == 0, done.out
    assert done.json["type"] == stages


def test_two_bc_files(run: Run, folder: Path) -> None:
    batches = [torch.randn(2, 3, 8, 8) for _ in range(2)]
    import nets  # type: ignore[import-not-found]

    stages = Stages(nets.Net(), batches, march="nash-e")
    compiler.save(stages.qat_bc, folder / "qat.bc")
    compiler.save(stages.quantized_bc, folder / "int.bc")
    torch.save(batches, folder / "x.pt")
    words = ("compare", "qat.bc", "int.bc", "--data", "x.pt", "--json")
    done = run(*words, "--max", "ATOL=1e-5")
    assert done.status == 0, done.out + done.err
    assert (done.json["march"], done.json["result"]["outputs"][0]["cases"]) == ("nash-e", 2)
    labelled = run("compare", "qat.bc", "int.bc", "--data", "nets:batches")
    assert labelled.status == 0, labelled.err
    assert run(*words, "--march", "nash-m").status == 2
    assert run(*words, "--int16", "conv1").err.endswith(
        "--int16: a .bc or .onnx file is taken as it is\n"
    )
    assert run("compare", "qat.bc", "--data", "x.pt").status == 2
    assert run("compare", "nets:make", "other:make", "--data", "x.pt").status == 2


def test_int16_raises_the_named_operator(run: Run) -> None:
    words = call("compare", "nets:Planted", "--json", "--prefix", "relu1")
    low = run(*words).json["result"]["operators"][0]
    high = run(*words, "--int16", "relu1").json["result"]["operators"][0]
    assert (low["dtype"], high["dtype"]) == ("qint8", "qint16")
    assert high["qscale"] < low["qscale"] / 200


def test_a_loss_is_a_metric_for_this_run_only(run: Run) -> None:
    done = run(
        *call("compare", "nets:make", "--loss", "nets:squared", "--json", "--max", "squared=0.5")
    )
    assert done.status == 0
    assert done.json["gates"][0]["output"] == "all"
    assert not hasattr(Metric, "squared")
    missing = run(*call("compare", "nets:make", "--max", "squared=0.5"))
    assert missing.status == 2
    assert "no metric 'squared'" in missing.err


def test_a_limit_on_the_wrong_side_is_refused(run: Run) -> None:
    done = run(*call("compare", "nets:make", "--max", "COSINE=0.9"))
    assert done.err.endswith("a larger COSINE is better, so a limit on it is --min\n")
    done = run(*call("compare", "nets:make", "--min", "L1=0.9"))
    assert done.err.endswith("a smaller L1 is better, so a limit on it is --max\n")


def test_only_some_operators(run: Run) -> None:
    words = call("compare", "nets:make", "--json")
    rows = run(*words, "--prefix", "conv", "--prefix", "fc").json["result"]["operators"]
    assert [row["name"] for row in rows] == ["conv1", "conv2", "fc"]
    rows = run(*words, "--op-type", "torch.nn:Linear").json["result"]["operators"]
    assert [row["name"] for row in rows] == ["fc"]


def test_the_files_are_named_and_there(run: Run, folder: Path) -> None:
    files = run(*call("compare", "nets:make", "--json", "--out-dir", "out")).json["files"]
    assert "out/badcase_report.html" in files
    assert "out/compare_per_layer_report_0.html" in files
    assert all((folder / name).is_file() for name in files)
