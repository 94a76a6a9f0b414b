"""``python -m qtune.compat``: a script runs as under plain python, in a process and inside one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipapp import create_archive

import pytest

from qtune.compat import run
from qtune.compat.install import finder

HEAD = "from horizon_plugin_pytorch import March\n"


def both(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], ...]:
    """The same arguments under plain python, and under compat."""
    return tuple(
        subprocess.run(
            [sys.executable, *before, *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        for before in ([], ["-m", "qtune.compat"])
    )


SCRIPTS = {
    "arguments and paths": "import sys; print(sys.argv, sys.path[0], __name__, __file__)",
    "a status": "import sys; sys.exit(7)",
    "a message": "import sys; sys.exit('no data')",
    "an error": "def f():\n    raise ValueError('wrong')\n\nf()",
    "a cause": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "an error of qtune's": "from qtune.errors import ArgumentError\nraise ArgumentError('wrong')",
    "annotations": "def f(x: int): ...\nprint(f.__annotations__)",
    "no syntax": "x = (",
    "interrupted": "raise KeyboardInterrupt",
    "exit handlers": "import atexit, __main__; value = 3\n"
    "atexit.register(lambda: print(__main__.value))",
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_ends_as_under_plain_python(kind: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "script.py").write_text(SCRIPTS[kind])
    plain, compat = both(tmp_path, "sub/script.py", "--epochs", "1", "-m", "x")
    assert compat.stdout == plain.stdout
    assert compat.stderr == plain.stderr
    assert compat.returncode == plain.returncode


def test_a_linked_script_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "near.py").write_text("print('found')")
    (tmp_path / "real" / "script.py").write_text("import near, sys; print(sys.path[0], __file__)")
    (tmp_path / "script.py").symlink_to(tmp_path / "real" / "script.py")
    plain, compat = both(tmp_path, "script.py")
    assert plain.stdout.startswith("found\n")
    assert (compat.stdout, compat.stderr) == (plain.stdout, plain.stderr)


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    plain, compat = both(tmp_path, "nowhere.py")
    assert plain.returncode == compat.returncode == 2
    assert compat.stderr.count("\n") == 1
    assert "nowhere.py" in compat.stderr


def test_a_module_runs_by_name(tmp_path: Path) -> None:
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(f"{HEAD}import sys\nprint(March.BAYES, sys.argv[1:])")
    _, compat = both(tmp_path, "-m", "project.train", "--lr", "1")
    assert compat.stdout == "bayes ['--lr', '1']\n"


def test_nothing_to_run_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 2
    assert "give a SCRIPT, or -m MODULE" in capsys.readouterr().err


def test_inside_of_a_process_all_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(f"{HEAD}import __main__, sys\nsame = __main__.March is March\nwords = sys.argv")
    before = (list(sys.argv), list(sys.path), sys.modules["__main__"])
    found = run([str(path), "a"])
    assert found["same"]
    assert found["words"] == [str(path), "a"]
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    assert finder() is None


def test_what_a_script_raises_goes_through_and_all_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(f"{HEAD}raise SystemExit(3)")
    with pytest.raises(SystemExit) as ended:
        run([str(path)])
    assert ended.value.code == 3
    assert finder() is None
    assert "horizon_plugin_pytorch" not in sys.modules


def test_a_folder_and_a_zip_file_run_by_their_main(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "near.py").write_text("VALUE = 3")
    main = "import near, sys; print(near.VALUE, __name__, sys.argv)"
    (tmp_path / "app" / "__main__.py").write_text(main)
    create_archive(tmp_path / "app", tmp_path / "app.pyz")
    for target in ("app", "app.pyz"):
        plain, compat = both(tmp_path, target, "x")
        assert plain.stdout == f"3 __main__ ['{target}', 'x']\n"
        assert (compat.stdout, compat.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize("words", [["empty"], ["-m", "nowhere.deep"], ["-m", "empty.nothing"]])
def test_what_can_not_be_found_is_an_error_of_one_line(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    plain, compat = both(tmp_path, *words)
    assert plain.returncode == compat.returncode == 1
    reason = plain.stderr.partition(": ")[2].replace(f"{tmp_path}/", "")  # behind the interpreter
    assert compat.stderr == f"qtune.compat: {reason}"


def test_a_script_whose_name_begins_with_a_dash(tmp_path: Path) -> None:
    (tmp_path / "-x.py").write_text("import sys; print(sys.argv)")
    plain, compat = both(tmp_path, "--", "-x.py", "--", "-y")
    assert plain.stdout == "['-x.py', '--', '-y']\n"
    assert (compat.stdout, compat.stderr) == (plain.stdout, plain.stderr)


def test_a_notebook_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "look.ipynb").write_text('{"cells": [], "nbformat": 4}')
    _, compat = both(tmp_path, "look.ipynb")
    assert compat.returncode == 2
    assert "look.ipynb is a notebook, not a script" in compat.stderr
    assert compat.stderr.count("\n") == 1


def test_a_real_package_beside_the_script_counts_as_installed(tmp_path: Path) -> None:
    (tmp_path / "hbdk4").mkdir()
    (tmp_path / "hbdk4" / "__init__.py").write_text("VALUE = 1")
    (tmp_path / "script.py").write_text("import hbdk4; print(getattr(hbdk4, 'VALUE', 'served'))")
    _, served = both(tmp_path, "script.py")
    assert served.stdout == "served\n"
    assert f"qtune stands for the installed hbdk4 ({tmp_path}" in served.stderr
    _, installed = both(tmp_path, "--prefer", "installed", "script.py")
    assert (installed.stdout, installed.stderr) == ("1\n", "")


def test_the_safe_path_of_python_holds_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    (tmp_path / "near.py").write_text("")
    (tmp_path / "script.py").write_text("import near")
    plain, compat = both(tmp_path, "script.py")
    assert "No module named 'near'" in plain.stderr
    assert (compat.stderr, compat.returncode) == (plain.stderr, plain.returncode)
