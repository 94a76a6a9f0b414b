"""``qtune report``: one page over what lies in a folder."""

from __future__ import annotations

from pathlib import Path

from .conftest import Run, call

DIR = "horizon_quant_analysis"


def test_the_page_has_what_the_commands_found(run: Run, folder: Path) -> None:
    for words in (
        call("check", "nets:Shared"),
        call("compare", "nets:Planted", "--max", "ATOL=0"),
        call("sensitivity", "nets:Planted", "--topk", "2"),
    ):
        assert run(*words).status in (0, 1)
    done = run("report", "--json")
    sections = ["runs", "check", "bad cases", "comparison", "sensitivity"]
    assert done.json["result"]["sections"] == sections
    page = (folder / DIR / "index.html").read_text()
    assert done.json["files"] == [f"{DIR}/index.html"]
    for text in (
        "nets:Shared",
        "relu1: 2 calls",
        "--max ATOL=0",
        "case worst",
    ):
        assert text in page
    heads = page.replace(" ", "").replace("\n", "")
    assert heads.index("op_error_channel_SQNR") < heads.index("op_error_COSINE")
    assert heads.index("qint8-qint16_ATOL") < heads.index("round_ATOL")
    assert "_generated_mean_0" in page[page.index("The largest errors of their own") :]
    for name in ("badcase_report.html", "sensitivity_v2_report.html"):
        assert f'href="{name}"' in page
        assert (folder / DIR / name).is_file()


def test_what_python_wrote_is_enough(run: Run, folder: Path) -> None:
    assert run(*call("compare", "nets:make")).status == 0
    for path in (folder / DIR).glob("qtune_*.json"):
        path.unlink()
    done = run("report", DIR, "--json", "--title", "My <net>")
    assert done.json["result"]["sections"] == ["bad cases", "comparison"]
    assert "<h1>My &lt;net&gt;</h1>" in (folder / DIR / "index.html").read_text()


def test_an_empty_or_missing_folder_is_an_error(run: Run, folder: Path) -> None:
    assert "DIR: there is no folder" in run("report").err
    (folder / DIR).mkdir()
    assert "nothing of qtune lies in" in run("report").err
    assert not list((folder / DIR).iterdir())


def test_a_damaged_result_is_named(run: Run, folder: Path) -> None:
    (folder / DIR).mkdir()
    (folder / DIR / "qtune_check.json").write_text("{")
    done = run("report")
    assert (done.status, "qtune_check.json: no result of a command" in done.err) == (2, True)
