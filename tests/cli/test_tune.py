"""``qtune tune``: the front, budgets, targets, and the dtypes it writes."""

from __future__ import annotations

import pathlib
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run, call

FEW = ("--evaluations", "6", "--json")


def mean(found: dict[str, Any], metric: str = "L1") -> float:
    rows = [row for row in found["result"]["outputs"] if row["metric"] == metric]
    value: float = rows[0]["mean"]
    return value


def test_the_written_dtypes_give_what_the_front_promises(run: Run) -> None:
    done = run(*call("tune", "nets:Planted", *FEW))
    chosen, front = done.json["result"]["chosen"], done.json["result"]["front"]
    assert done.status == 0
    assert ["relu1", "output"] in chosen["ports"]
    assert front["points"][0]["ports"] == []
    file = next(name for name in done.json["files"] if name.endswith("qconfig_dtypes.pt"))
    compared = run(*call("compare", "nets:Planted", "--dtypes", file, "--json")).json
    # the same data calibrate: only float32 sums in another order are between the two
    assert mean(compared) == pytest.approx(chosen["mean"], rel=1e-4)
    assert mean(compared) < front["points"][0]["mean"]


def test_points_beyond_the_budget_are_not_chosen(run: Run) -> None:
    words = call("tune", "nets:Planted", *FEW)
    point = run(*words, "--int16-macs", "0.1").json["result"]["chosen"]
    assert point["int16_macs"] <= 0.1
    assert run(*words, "--stubs", "0").json["result"]["chosen"]["ports"] == []
    done = run(*words, "--latency", "1.02x").json["result"]
    asit = done["front"]["points"][0]["latency_us"]
    # the product is taken in another order there
    assert done["budget"]["latency_us"] == pytest.approx(1.02 * asit)
    assert done["chosen"]["latency_us"] <= 1.02 * asit
    front = run(*words, "--skip", "relu1", "--stubs", "1").json["result"]["front"]
    assert len(front["evaluated"]) > 1
    assert not any(["relu1", "output"] in point["ports"] for point in front["evaluated"])


def test_a_factor_of_the_latency_is_for_the_batch_size_of_the_data(run: Run, folder: Path) -> None:
    (folder / "large.py").write_text("import torch\nx = [torch.rand(16, 3, 8, 8)]\n")
    more = ("--calibration-data", "nets:batches", *FEW)
    words = call("tune", "nets:Planted", *more, data="large:x")
    done = run(*words, "--latency", "1.02x")
    assert done.status == 0, done.err
    asit = done.json["result"]["front"]["points"][0]["latency_us"]
    # the product is taken in another order there
    assert done.json["result"]["budget"]["latency_us"] == pytest.approx(1.02 * asit)


def test_the_target_takes_the_cheapest_point_or_fails(run: Run) -> None:
    words = call("tune", "nets:Planted", *FEW)
    points = run(*words).json["result"]["front"]["points"]
    assert len(points) > 2
    done = run(*words, "--target", f"L1={points[1]['mean']!r}")
    assert (done.status, done.json["result"]["chosen"]) == (0, points[1])
    done = run(*words, "--target", "L1=0")
    assert done.status == 1
    gate = done.json["gates"][0]
    assert (gate["gate"], gate["value"]) == ("--target L1=0", points[-1]["mean"])
    done = run(*words, "--target", f"L1={points[-1]['mean']!r}", "--stubs", "1")
    assert done.status == 1  # reached, but not within the budget


def test_a_score_of_the_users(run: Run, folder: Path) -> None:
    with pathlib.Path("score.py").open("w") as file:
        file.write(
            "import torch\nX = torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)\n"
            "def sharpness(model):\n    return float(model(X).abs().sum())\n"
        )
    words = call("tune", "nets:Planted", "--score", "score:sharpness", *FEW)
    done = run(*words, "--target", "sharpness=0")
    assert done.status == 0, done.err
    assert done.json["result"]["front"]["score"] == "sharpness"
    assert done.json["result"]["chosen"]["ports"] == []
    assert "write --target sharpness=0" in run(*words, "--target", "L1=0").err


def test_a_score_that_raises_and_a_latency_below_the_model_are_said_at_once(
    run: Run, folder: Path
) -> None:
    (folder / "score.py").write_text("def of_two(model, data):\n    return 1.0\n")
    done = run(*call("tune", "nets:Planted", "--score", "score:of_two", *FEW))
    assert "--score: score:of_two, called with the calibrated model, raised TypeError" in done.err
    done = run(*call("tune", "nets:Planted", "--latency", "0.01", *FEW))
    assert "us by the static estimate, more than 0.01 us; for a factor write an x" in done.err
    assert not (folder / "horizon_quant_analysis").exists()


def test_a_loss_and_a_metric(run: Run) -> None:
    words = call("tune", "nets:make", *FEW)
    assert run(*words, "--loss", "nets:squared").json["result"]["front"]["score"] == "squared"
    front = run(*words, "--target", "COSINE=0.5").json["result"]["front"]
    assert (front["score"], front["ascending"]) == ("COSINE", True)
    assert run(*words, "--score", "nets:make", "--loss", "nets:squared").status == 2
    assert run(*words, "--target", "L2=0.5").status == 2
