"""The fixture ``qtune_stages``: a model in all its stages, built once for all workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import options

if TYPE_CHECKING:
    from qtune.testing.stages import Stages

MARKED_MARCH = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def qtune_stages(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Stages]:
    """Return ``build(factory, calibration, *, march=None, ...) -> Stages``.

    ``factory`` is a float module or a callable that makes one; ``calibration`` the batches, or a
    callable that gives them. All arguments of ``qtune.testing.Stages`` are accepted. ``march``
    defaults to the marker's, then ``--qtune-march``, then the ini key, then ``set_march``.
    Artefacts are kept under their content's hash, shared by workers and by later runs.
    """
    store = _artefacts(pytestconfig, tmp_path_factory)

    def build(factory: Any, calibration: Any, *, march: str | None = None, **rest: Any) -> Stages:
        import torch

        from qtune.march import get_march
        from qtune.testing.stages import Stages
        from qtune.testing.store import DirectoryStore

        torch.set_num_threads(options.threads(pytestconfig))
        marked = pytestconfig.stash.get(MARKED_MARCH, None)
        chosen = march or marked or options.get(pytestconfig, "march") or get_march()
        rest.setdefault("store", DirectoryStore(store))
        return Stages(factory, calibration, march=chosen, **rest)

    return build


def _artefacts(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the cache; beside the controller's temporary files where caching is off."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        return Path(cache.mkdir("qtune"))
    base = tmp_path_factory.getbasetemp()
    if hasattr(config, "workerinput"):
        base = base.parent  # a worker's own folder lies inside the controller's
    return base / "qtune-artefacts"


def clear(config: pytest.Config) -> None:
    """Forget every cached artefact (``--qtune-cache-clear``; on the controller, before workers)."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        shutil.rmtree(cache.mkdir("qtune"))
