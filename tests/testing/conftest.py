"""Models in all their stages, built once for the whole folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qtune.testing import DirectoryStore, Stages

from . import nets


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Stages]:
    """Stages of one of the nets, kept in one store."""
    store = DirectoryStore(tmp_path_factory.mktemp("store"))

    def make(cls: type[torch.nn.Module], **rest: object) -> Stages:
        return Stages(nets.make(cls), nets.batches, march="nash-e", name="net", store=store, **rest)

    return make


@pytest.fixture(scope="session")
def stages(build: Callable[..., Stages]) -> Stages:
    return build(nets.Net)


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing that an assertion or a stage does may leave a file in the working folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.delenv("QTUNE_RUN_DIR", raising=False)
    monkeypatch.chdir(folder)
    yield folder
    assert not list(folder.iterdir())


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of baselines in a script of its own: no pytest to name in advice."""
    monkeypatch.setattr("qtune.testing.baseline.rerun_command", lambda: None)  # as in a script
    monkeypatch.setattr("qtune.testing.result.rerun_command", lambda: None)
    monkeypatch.chdir(tmp_path)
    return Path("__qtune__/test_net.json")
