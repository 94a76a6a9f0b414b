"""DirectoryStore: built once, whole or not at all, damaged entries built again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from qtune.testing.store import DirectoryStore, MemoryStore, content_key


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
        lambda path: path.unlink(),
    ],
    ids=["cut", "empty", "no checksum", "wrong checksum", "vanished"],
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


def test_memory_store_builds_every_time() -> None:
    store = MemoryStore()
    assert get(store, lambda: "one") == "one"
    assert get(store, lambda: "two") == "two"
    assert store.path("k", "a.txt") is None


def test_content_key_ignores_the_order_of_facts() -> None:
    assert content_key({"a": 1, "b": "x"}) == content_key({"b": "x", "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})
    assert os.sep not in content_key({"a": 1})
