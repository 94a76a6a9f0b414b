"""``qtune compat-report``: what may be given to it, and what a star import brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtune.cli import main
from qtune.compat.report import compat_report
from qtune.errors import ArgumentError

IMPORT = "from hbdk4.compiler import load\n"


def test_a_folder_stands_for_the_scripts_in_it(tmp_path: Path) -> None:
    for name in ("a.py", "sub/b.py", ".hidden/c.py", "venv/lib/d.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(IMPORT)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    report = compat_report([tmp_path])
    assert report.files == (str(tmp_path / "a.py"), str(tmp_path / "sub" / "b.py"))
    (use,) = report.names
    assert use.places == tuple((file, 1) for file in report.files)


def test_a_folder_without_a_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"there is no script \(\*\.py\) in the folder"):
        compat_report([tmp_path])


def test_a_notebook_is_refused_and_not_read_as_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "look.ipynb"
    path.write_text('{"cells": [{"source": ["import hbdk4.nothing"]}]}')  # Python, too
    assert main(["compat-report", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("qtune compat-report: ")
    assert "jupyter nbconvert --to script look.ipynb" in err


def test_a_file_that_is_no_script_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = (\n")
    assert main(["compat-report", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"qtune compat-report: can't read {path} as a script: '(' was never")


SETTER = "horizon_plugin_pytorch.quantization.qconfig_setter"
STARS = {
    "left out": (f"from {SETTER} import *\nPropagateTemplate\n", [f"{SETTER}.PropagateTemplate"]),
    "of one module": (
        "from hmct.api import *\nload_model\nbuild_model\n",
        ["hmct.api.load_model"],
    ),
    "own name": (f"from {SETTER} import *\ndef find_bad_case(): ...\nfind_bad_case()\n", []),
    "own name before": (f"def find_bad_case(): ...\nfrom {SETTER} import *\nfind_bad_case\n", []),
    "another star": (f"from {SETTER} import *\nfrom mine import *\nInferenceEngine\n", []),
    "another star before": (f"from mine import *\nfrom {SETTER} import *\nInferenceEngine\n", []),
}


@pytest.mark.parametrize("kind", STARS)
def test_what_only_the_toolchains_star_brings_is_missing(kind: str, tmp_path: Path) -> None:
    text, expected = STARS[kind]
    (tmp_path / "script.py").write_text(text)
    missing = compat_report([tmp_path / "script.py"]).missing
    assert [use.name for use in missing] == expected
