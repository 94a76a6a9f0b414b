"""A project in a temporary folder, and a run of its gate file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qtune.testing.gatefile import GateFile, read
from qtune.testing.gatefile.run import GateRun, Settings, gate_run
from qtune.testing.store import DirectoryStore

from . import projects

Load = Callable[..., GateFile]
Start = Callable[..., GateRun]


@pytest.fixture(autouse=True)
def no_modules_left() -> Iterator[None]:
    """Modules of the project that a test imports itself are forgotten."""
    yield
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write the text of a gate file and read it."""

    def one(text: str | bytes) -> GateFile:
        path = projects.write(tmp_path, "")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read(path, "resnet.qtune.toml")

    return one


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    return DirectoryStore(tmp_path_factory.mktemp("gate_store"))


@pytest.fixture
def start(load: Load, store: DirectoryStore) -> Start:
    """A run of a gate file with this text."""

    def one(text: str, march: str | None = None) -> GateRun:
        file = load(text)
        return gate_run(file, file.folder, Settings(store, march))

    return one
