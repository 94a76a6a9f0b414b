"""DirectoryStore: built once, whole or not at all, damaged entries built again."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qtune.testing.store import DirectoryStore, MemoryStore, content_key, remove_folder

DAY_S = 24 * 3600


def get(store: DirectoryStore | MemoryStore, build: Callable[[], str], key: str = "k") -> str:
    return store.get(key, "a.txt", build, lambda v, p: p.write_text(v), lambda p: p.read_text())


def never() -> str:
    raise AssertionError("built again")


def test_built_once_then_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    assert get(store, lambda: "one") == "one"
    assert get(store, never) == "one"
    assert get(DirectoryStore(tmp_path), never) == "one"
    assert store.built == ["k/a.txt"]
    assert store.found == ["k/a.txt"]
    assert store.path("k", "a.txt").read_text() == "one"


def test_another_key_is_another_artefact(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    get(store, lambda: "one")
    assert get(store, lambda: "two", key="other") == "two"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.with_name("a.txt.sha256").unlink(),
        lambda path: path.with_name("a.txt.sha256").write_text("0" * 64),
        lambda path: path.with_name("a.txt.sha256").write_bytes(b"\xff\xfe"),
        lambda path: path.write_text("of another"),
        lambda path: path.unlink(),
    ],
    ids=[
        "cut",
        "empty",
        "no checksum",
        "wrong checksum",
        "no text",
        "foreign",
        "vanished",
    ],
)
def test_damaged_entry_is_built_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    store = DirectoryStore(tmp_path)
    get(store, lambda: "one")
    damage(store.path("k", "a.txt"))
    assert get(store, lambda: "new") == "new"
    assert get(store, never) == "new"


def test_entry_that_cannot_be_loaded_is_built_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    get(store, lambda: "one")

    def load(path: Path) -> str:
        raise ValueError("a file of another version")

    built = store.get("k", "a.txt", lambda: "new", lambda v, p: p.write_text(v), load)
    assert built == "new"


def test_failing_build_leaves_nothing_and_frees_the_lock(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with pytest.raises(AssertionError, match="built again"):
        get(store, never)
    assert not store.path("k", "a.txt").exists()
    assert get(store, lambda: "one") == "one"


def test_one_artefact_may_ask_for_another_of_its_key(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)

    def outer() -> str:
        return "outer of " + store.get(
            "k", "b.txt", lambda: "inner", lambda v, p: p.write_text(v), lambda p: p.read_text()
        )

    assert get(store, outer) == "outer of inner"


def test_of_many_at_once_one_builds(tmp_path: Path) -> None:
    built: list[int] = []
    barrier = threading.Barrier(6)

    def worker() -> None:
        store = DirectoryStore(tmp_path)
        barrier.wait()
        get(store, lambda: built.append(1) or "one")

    threads = [threading.Thread(target=worker) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]


def test_killed_writer_leaves_no_artefact_and_its_remains_are_removed(tmp_path: Path) -> None:
    script = f"""
        import os, signal
        from qtune.testing.store import DirectoryStore

        def save(value, path):
            path.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

        DirectoryStore({str(tmp_path)!r}).get("k", "a.txt", lambda: "whole", save, None)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    store = DirectoryStore(tmp_path)
    assert not store.path("k", "a.txt").exists()
    assert list((tmp_path / "k").glob(".a.*.part.txt"))
    assert get(store, lambda: "whole") == "whole"
    assert not list((tmp_path / "k").glob(".a.*.part.txt"))


def test_of_many_processes_at_once_one_builds(tmp_path: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        from qtune.testing.store import DirectoryStore

        def build():
            with open({str(tmp_path / "built")!r}, "a") as file:
                file.write("x")
            time.sleep(0.2)
            return "one"

        DirectoryStore({str(tmp_path / "store")!r}).get(
            "k", "a.txt", build, lambda v, p: p.write_text(v), lambda p: p.read_text()
        )
    """
    call = [sys.executable, "-c", textwrap.dedent(script)]
    started = [subprocess.Popen(call) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert (tmp_path / "built").read_text() == "x"


@pytest.mark.parametrize("save", [lambda text, path: path.write_text(text), torch.save])
def test_what_the_disk_has_no_space_for_is_given_but_not_kept(
    save: Callable[[str, Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DirectoryStore(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        given = store.get("k", "a", lambda: "x" * 5000, save, lambda path: path.read_text())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert given == "x" * 5000
    assert "is not kept" in caplog.text
    assert not store.path("k", "a").exists()
    assert not [path for path in (tmp_path / "k").iterdir() if path.suffix != ".lock"]
    assert get(store, lambda: "new") == "new"  # and the next one is kept
    assert get(store, never) == "new"


def test_where_no_folder_can_be_made_it_is_built_every_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "k").write_text("a file")
    store = DirectoryStore(tmp_path)
    assert get(store, lambda: "one") == "one"
    assert get(store, lambda: "two") == "two"
    assert "nothing is kept" in caplog.text


def test_what_a_folder_without_permission_to_write_holds_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(DirectoryStore(tmp_path), lambda: "one")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("qtune.testing.store.FileLock.acquire", refuse)
    store = DirectoryStore(tmp_path)
    assert get(store, never) == "one"
    assert get(store, lambda: "two", key="other") == "two"
    assert not store.path("other", "a.txt").exists()


def test_errors_of_the_build_are_not_taken_for_those_of_the_disk(tmp_path: Path) -> None:
    def build() -> str:
        raise FileNotFoundError("calibration.pt")

    with pytest.raises(FileNotFoundError, match="calibration"):
        get(DirectoryStore(tmp_path), build)


def test_keys_unused_for_a_month_are_removed_when_another_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    ages = {"old": 40, "used": 40, "recent": 20}
    for key in ages:
        get(DirectoryStore(folder), lambda: "one", key=key)
    for key, days in ages.items():
        before = time.time() - days * DAY_S
        os.utime(folder / key, (before, before))
    store = DirectoryStore(folder)
    get(store, never, key="used")  # reading counts as use
    assert sorted(p.name for p in folder.iterdir()) == ["old", "recent", "used"]
    get(store, lambda: "two", key="new")
    assert sorted(p.name for p in folder.iterdir()) == ["new", "recent", "used"]


def test_folder_removed_by_another_run_in_the_middle_of_a_build_costs_only_the_entry(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path / "store")

    def build() -> str:
        remove_folder(tmp_path / "store")
        return "one"

    assert get(store, build) == "one"
    assert get(store, lambda: "two") in ("one", "two")
    assert not list(tmp_path.glob(".old.*"))


def test_memory_store_builds_every_time() -> None:
    store = MemoryStore()
    assert get(store, lambda: "one") == "one"
    assert get(store, lambda: "two") == "two"
    assert store.path("k", "a.txt") is None


def test_content_key_ignores_the_order_of_facts() -> None:
    assert content_key({"a": 1, "b": "x"}) == content_key({"b": "x", "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})
    assert os.sep not in content_key({"a": 1})
