"""``qtune sensitivity``: rankings, methods, gates."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run, call


def test_the_planted_activation_is_first(run: Run) -> None:
    done = run(*call("sensitivity", "nets:Planted", "--json"))
    assert done.status == 0
    tables = done.json["result"]["tables"]
    assert len(tables) == 1
    assert (tables[0]["rows"][0]["op_name"], tables[0]["rows"][0]["dtype"]) == ("relu1", "qint8")


def test_text_shows_the_first_rows(run: Run) -> None:
    done = run(*call("sensitivity", "nets:Planted", "--top", "2"))
    assert "(2 of 7 ports)" in done.out
    assert "qint8-qint16_ATOL" in done.out
    assert "relu1 " in done.out
    assert "_input_0_quant" not in done.out


def test_several_cases_are_shown_by_their_worst(run: Run) -> None:
    done = run(*call("sensitivity", "nets:make", "--topk", "3"))
    assert "The output, worst of 3 cases" in done.out


def test_gradients_need_a_loss(run: Run) -> None:
    words = call("sensitivity", "nets:Planted", "--method", "grad_x_error")
    assert run(*words).status == 2
    assert "give --loss module:function" in run(*words).err
    assert "MSE is none" in run(*words, "--metric", "MSE").err
    done = run(*words, "--loss", "nets:squared", "--json")
    assert done.json["metric"] == "squared"
    assert done.json["result"]["tables"][0]["output"] == "all"
    scores = [row["GRAD_X_ERROR"] for row in done.json["result"]["tables"][0]["rows"]]
    assert len(scores) == 7
    assert scores == sorted(scores, reverse=True)
    words = (*words, "--loss", "nets:squared", "--json")
    failed = run(*words, "--max", repr(scores[1]))
    assert (failed.status, failed.json["gates"][0]["value"]) == (1, scores[0])
    assert run(*words, "--max", repr(scores[0])).status == 0
    assert "--max-gain: grad_x_error gives one score" in run(*words, "--max-gain", "1").err


@pytest.mark.parametrize("option", ["--max", "--max-gain"])
def test_gates_hold_at_the_value_and_fail_beyond_it(run: Run, option: str) -> None:
    words = call("sensitivity", "nets:Planted", "--json")
    failed = run(*words, option, "0")
    assert failed.status == 1
    gate = failed.json["gates"][0]
    assert (gate["port"], gate["limit"]) == ("output", "<= 0")
    assert option == "--max" or gate["operator"] == "relu1"
    assert run(*words, option, repr(gate["value"])).status == 0


def test_a_similarity_is_bounded_from_below(run: Run) -> None:
    words = call("sensitivity", "nets:Planted", "--metric", "COSINE", "--json")
    assert run(*words, "--min", "1").status == 1
    assert run(*words, "--min", "0.5").status == 0
    assert run(*words, "--max", "0.5").status == 2


def test_unknown_names_are_refused(run: Run) -> None:
    assert "no metric 'ATLO'" in run(*call("sensitivity", "nets:make", "--metric", "ATLO")).err
    done = run(*call("sensitivity", "nets:make", "--output", "logits"))
    assert (done.status, "logits" in done.err) == (2, True)


def test_the_files_are_named_and_there(run: Run, folder: Path) -> None:
    files = run(*call("sensitivity", "nets:make", "--json", "--out-dir", "out")).json["files"]
    assert "out/sensitivity_v2_report.html" in files
    assert all((folder / name).is_file() for name in files)
