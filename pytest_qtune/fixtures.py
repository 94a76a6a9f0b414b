"""The fixtures ``qtune_stages`` and ``qtune_onnx_stages``: a model in all its stages, built once
for all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_qtune import options, threads

if TYPE_CHECKING:
    from qtune.testing.onnx_stages import OnnxStages
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

    def build(factory: Any, calibration: Any, *, march: str | None = None, **rest: Any) -> Stages:
        from pytest_qtune import cache
        from qtune.testing.stages import Stages

        threads.limit_torch(pytestconfig)
        rest.setdefault("store", cache.store(pytestconfig, tmp_path_factory))
        return Stages(
            factory, calibration, march=march or _march(pytestconfig, "qtune_stages"), **rest
        )

    return build


@pytest.fixture(scope="session")
def qtune_onnx_stages(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., OnnxStages]:
    """Return ``build(model, calibration=None, *, march=None, ...) -> OnnxStages``.

    ``model`` is the path of an ``.onnx`` file or a ``ModelProto``; ``calibration`` a folder, a
    list, a dict, or a callable that gives one; none for a model that is calibrated already. All
    arguments of ``qtune.testing.OnnxStages`` are accepted; march and cache are those of
    ``qtune_stages``.
    """

    def build(
        model: Any, calibration: Any = None, *, march: str | None = None, **rest: Any
    ) -> OnnxStages:
        from pytest_qtune import cache
        from qtune.testing.onnx_stages import OnnxStages

        threads.limit_torch(pytestconfig)
        rest.setdefault("store", cache.store(pytestconfig, tmp_path_factory))
        return OnnxStages(
            model, calibration, march=march or _march(pytestconfig, "qtune_onnx_stages"), **rest
        )

    return build


def _march(config: pytest.Config, fixture: str) -> str:
    from qtune.errors import MarchError
    from qtune.march import get_march

    marked = config.stash.get(MARKED_MARCH, None) or options.get(config, "march")
    if marked:
        return str(marked)
    try:
        return str(get_march())
    except MarchError:
        raise MarchError(
            f"{fixture}: no march is set: pass march='nash-e' (or another) to it, give "
            "--qtune-march, or set qtune_march in the ini file"
        ) from None
