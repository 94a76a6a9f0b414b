"""The file of baselines: what it holds, how it is merged, what is wrong with a bad one."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from qtune.errors import BaselineError
from qtune.testing import baseline_file
from qtune.testing.baseline_file import (
    SCHEMA,
    BaselineFile,
    Entry,
    baseline_path,
    changes_of,
    to_text,
    write,
    write_all,
)

SCHEMA_1 = '{{"schema": 1, "entries": {{"a": {{"x": {{"kind": "metric", "value": 1, {}}}}}}}}}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "__qtune__" / "test_net.json"


def metric(value: float) -> Entry:
    return Entry("metric", value)


def test_the_text_has_sorted_keys_and_one_line_per_small_field() -> None:
    entry = Entry(
        "metric", 31.25, {"max_drop": 0.5}, "higher", {"march": "nash-e"}, {"torch": "2.13.0"}
    )
    assert to_text({"b": {"y": metric(1), "x": entry}, "a": {"x": metric(2)}}) == (
        """{
 "entries": {
  "a": {
   "x": {"direction": "both", "kind": "metric", "value": 2}
  },
  "b": {
   "x": {
    "direction": "higher",
    "environment": {"torch": "2.13.0"},
    "identity": {"march": "nash-e"},
    "kind": "metric",
    "tolerance": {"max_drop": 0.5},
    "value": 31.25
   },
   "y": {"direction": "both", "kind": "metric", "value": 1}
  }
 },
 "schema": 1
}
"""
    )


@pytest.mark.parametrize(
    "value", [0, -(2**70), 0.1, -0.0, 0.0, 5e-324, math.nan, math.inf, -math.inf], ids=repr
)
def test_every_number_comes_back_as_it_was(path: Path, value: float) -> None:
    write(path, {"key": {"name": metric(value)}})
    found = BaselineFile.read(path).get("key", "name")
    assert found is not None
    assert type(found.value) is type(value)
    assert repr(found.value) == repr(value)
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN that other readers refuse


@pytest.mark.parametrize("key", ["t[ü-雪]", 't["quoted"\\n]', "t[a/b::c@d]", "t[\udc80]", "t[]"])
def test_every_key_comes_back_as_it_was(path: Path, key: str) -> None:
    write(path, {key: {key: metric(1)}})
    assert BaselineFile.read(path).entries == {key: {key: metric(1)}}


def test_what_others_wrote_stays_and_none_removes(path: Path) -> None:
    write(path, {"a": {"x": metric(1), "y": metric(2)}, "b": {"x": metric(3)}})
    write(path, changes_of([("a", "x", None), ("a", "z", metric(4)), ("c", "x", None)]))
    assert BaselineFile.read(path).entries == {
        "a": {"y": metric(2), "z": metric(4)},
        "b": {"x": metric(3)},
    }


def test_an_equal_file_is_not_touched(path: Path) -> None:
    assert write(path, {"a": {"x": metric(1)}})
    crlf = path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(crlf)
    assert not write(path, {"a": {"x": metric(1)}})
    assert path.read_bytes() == crlf


def test_line_ends_of_windows_and_a_byte_order_mark_are_read(path: Path) -> None:
    write(path, {"a": {"x": metric(1)}})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert BaselineFile.read(path).get("a", "x") == metric(1)


def test_a_file_that_is_not_there_holds_nothing(path: Path) -> None:
    assert BaselineFile.read(path).entries == {}
    assert not path.parent.exists()


def test_only_the_file_itself_is_left_behind(path: Path) -> None:
    write(path, {"a": {"x": metric(1)}})
    assert [found.name for found in path.parent.iterdir()] == ["test_net.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON: Expecting property name"),
        ("", "no JSON"),
        ("[]", "no schema number"),
        ('{"schema": true, "entries": {}}', "no schema number"),
        ('{"schema": 1}', "entries is an object, not None"),
        ('{"schema": 1, "entries": {"a": {"x": 3}}}', "a::x: an entry needs a value and a kind"),
        ('{"schema": 1, "entries": {"a": {"x": {"kind": "metric", "value": "1"}}}}', "a number"),
        ('{"schema": 1, "entries": {"a": {"x": {"kind": "array", "value": 1}}}}', "an object"),
        (SCHEMA_1.format('"tolerance": {"rtol": "x"}'), "tolerance holds numbers, but rtol is 'x'"),
        (SCHEMA_1.format('"identity": {"march": 3}'), "a::x: identity holds texts, but march is 3"),
        (SCHEMA_1.format('"environment": {"a": []}'), "environment holds texts, but a is"),
        (SCHEMA_1.format('"value": 2'), "'value' is there twice"),
        ("[" * 100_000, "no JSON: maximum recursion depth"),
        (f'{{"schema": {SCHEMA + 1}, "entries": {{}}}}', "written by a newer qtune .*update qtune"),
        ("\xff", "can't be read"),
    ],
)
def test_a_bad_file_is_one_error_that_names_it(path: Path, text: str, message: str) -> None:
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BaselineError, match=message) as error:
        BaselineFile.read(path)
    assert str(error.value).startswith(str(path))
    with pytest.raises(BaselineError):
        write(path, {"a": {"x": metric(1)}})
    assert path.read_bytes() == text.encode("latin-1")


def test_conflict_markers_of_git_are_named_with_their_line(path: Path) -> None:
    write(path, {"a": {"x": metric(1)}})
    lines = path.read_text().splitlines()
    lines[3:3] = ["<<<<<<< HEAD", "=======", ">>>>>>> branch"]
    path.write_text("\n".join(lines))
    with pytest.raises(BaselineError, match="line 4: git left conflict markers"):
        BaselineFile.read(path)


def test_an_older_schema_is_part_of_the_identity(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"schema": 0, "entries": {"a": {"x": {"kind": "metric", "value": 1}}}}')
    found = BaselineFile.read(path).get("a", "x")
    assert found is not None
    assert found.identity == {"schema": "0"}


def test_a_folder_that_can_not_be_made_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "__qtune__").write_text("a file")
    with pytest.raises(BaselineError, match="baselines can't be written to .*test_net.json"):
        write(tmp_path / "__qtune__" / "test_net.json", {"a": {"x": metric(1)}})


def test_no_file_is_written_where_one_of_them_can_not_be(path: Path) -> None:
    other = path.with_name("zz.json")
    write(other, {"a": {"x": metric(1)}})
    other.write_text("damaged")
    with pytest.raises(BaselineError):
        write_all({path: {"a": {"x": metric(1)}}, other: {"a": {"x": metric(2)}}})
    assert not path.exists()
    assert [found.name for found in path.parent.iterdir()] == ["zz.json"]


def test_a_process_that_is_killed_before_the_rename_leaves_the_old_file(path: Path) -> None:
    write(path, {"a": {"x": metric(1)}})
    before = path.read_bytes()
    code = (
        "import os, sys; from pathlib import Path;"
        "from qtune.testing.baseline_file import Entry, write;"
        "Path.replace = lambda *_: os.kill(os.getpid(), 9);"
        "write(Path(sys.argv[1]), {'a': {'x': Entry('metric', 2)}})"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    write(path, {"a": {"x": metric(3)}})
    assert [found.name for found in path.parent.iterdir()] == ["test_net.json"]


def test_a_lock_that_is_not_given_back_is_one_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline_file, "_LOCK_SECONDS", 0.01)
    with FileLock(baseline_file._lock_path(path)):
        with pytest.raises(BaselineError, match="baselines can't be written to .* lock"):
            write(path, {"a": {"x": metric(1)}})


def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from qtune.testing.baseline_file import Entry, write;"
        "[write(Path(sys.argv[1]), {sys.argv[2]: {str(i): Entry('metric', i)}}) for i in range(20)]"
    )
    command = [sys.executable, "-c", code, str(path)]
    started = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    found = BaselineFile.read(path).entries
    assert {key: len(named) for key, named in found.items()} == {"0": 20, "1": 20, "2": 20}


def test_a_link_stays_and_the_file_behind_it_is_written(path: Path) -> None:
    kept = path.parent.parent / "kept.json"
    path.parent.mkdir()
    path.symlink_to(kept)
    write_all({path: {"a": {"x": metric(1)}}})
    assert path.is_symlink()
    assert BaselineFile.read(kept).entries == {"a": {"x": metric(1)}}
    with FileLock(baseline_file._lock_path(kept)) as lock:
        assert baseline_file._lock_path(path) == lock.lock_file
    assert [found.name for found in path.parent.iterdir()] == ["test_net.json"]


def test_gate_files_and_modules_have_files_of_their_own(tmp_path: Path) -> None:
    assert baseline_path(tmp_path / "net.txt") == tmp_path / "__qtune__" / "net.txt.json"
    assert baseline_path(tmp_path / "test_net.py") == tmp_path / "__qtune__" / "test_net.json"
    assert baseline_path(tmp_path / "net.qtune.toml") == tmp_path / "__qtune__" / "net.qtune.json"


def test_reading_and_writing_load_no_torch(path: Path) -> None:
    code = (
        "import sys, pathlib; from qtune.testing.baseline_file import *;"
        "write(pathlib.Path(sys.argv[1]), {'a': {'x': Entry('metric', 1)}});"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0
