"""Output files are whole or not there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qtune.errors import ArgumentError
from qtune.report.files import atomic_path, check_folder, write_text, write_with


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_as_utf8_into_new_folders(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a" / "b" / "ü.txt", "größe\n")
    assert path.read_bytes() == "größe\n".encode()
    assert names(path.parent) == ["ü.txt"]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    write_text(str(tmp_path / "a.txt"), "new")
    assert (tmp_path / "a.txt").read_text() == "new"


def test_a_failing_writer_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")

    def writer(partial: Path) -> None:
        partial.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_with(tmp_path / "a.txt", writer)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_failing_first_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"):
        write_with(tmp_path / "a.txt", lambda path: (_ for _ in ()).throw(OSError("disk")))
    assert names(tmp_path) == []


def test_ctrl_c_leaves_nothing_as_soon_as_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = Path.touch

    def stop(path: Path, *args: int, **kwargs: int) -> None:
        touch(path, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "touch", stop)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "report.txt", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_keeps_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    program = (
        "import os, signal, sys\n"
        "from qtune.report.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as partial:\n"
        "    partial.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.txt")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"


def test_the_temporary_file_has_the_suffix_and_lies_beside_the_target(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "net.bc") as partial:
        assert partial.suffix == ".bc"
        assert partial.parent == tmp_path
        partial.write_text("x")


def test_others_may_read_the_file(tmp_path: Path) -> None:
    assert write_text(tmp_path / "a.txt", "x").stat().st_mode & 0o777 == 0o644


def test_the_writers_result_is_not_needed(tmp_path: Path) -> None:
    path = write_with(tmp_path / "a.bin", lambda partial: partial.write_bytes(b"\0\1"))
    assert path.read_bytes() == b"\0\1"


@pytest.mark.parametrize("folder", ["", b"x", 1, None, "a\0b", "x" * 300])
def test_what_can_be_no_folder_is_refused_in_the_name_of_the_argument(folder: Any) -> None:
    with pytest.raises(ArgumentError, match="^save_dir: "):
        check_folder(folder, "save_dir")


def test_a_folder_below_a_file_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"save_dir: .*file is a file"):
        check_folder(tmp_path / "file" / "out", "save_dir")
    check_folder(tmp_path / "new" / "out", "save_dir")
    check_folder(f"{tmp_path}/", "save_dir")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
