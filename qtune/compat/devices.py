"""What changes in torch while the aliases are installed; nothing does where there is a GPU.

A script of the toolchain begins its processes with ``init_process_group("nccl")`` and
``torch.cuda.set_device(rank)``. Neither decides a number, so without a GPU the backend is gloo and
the choice of a GPU has no effect; both are logged. An explicit device, ``.cuda()`` or
``.to("cuda")``, says where numbers are computed: that is torch's to refuse.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from qtune.compat.roots import TORCH_NAMES, TORCH_ROOTS

_log = logging.getLogger(__name__)
Undo = Callable[[], None]


# Only what torch itself never reads back is replaced: tensor methods and factories stay, because
# the registry of operators knows them by identity.
def adapt_torch(torch: ModuleType) -> list[Undo]:
    """Change torch for scripts of the toolchain; return what takes each change back."""
    undo = [undone for root in TORCH_ROOTS for undone in _complete(root)]
    if torch.distributed.is_available():
        for name in ("init_process_group", "new_group"):
            wrapped = _gloo_without_gpu(getattr(torch.distributed, name), torch)
            undo.append(_replace(torch.distributed, name, wrapped))
    undo.append(_replace(torch.cuda, "set_device", _no_choice_without_gpu(torch)))
    return undo


def _replace(module: ModuleType, name: str, value: Any) -> Undo:
    before = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, before)


def _complete(root: str) -> list[Undo]:
    """Give a module of torch the names that it lacks, from ``qtune.quantization``."""
    module = _module(root)
    if module is None:
        return []
    lacking = [name for name in TORCH_NAMES if not hasattr(module, name)]
    if not lacking:
        return []
    before = vars(module).get("__getattr__")
    module.__getattr__ = _served(module, lacking, before)  # type: ignore[method-assign]

    def undo() -> None:
        if before is None:
            del module.__getattr__
        else:
            module.__getattr__ = before  # type: ignore[method-assign]

    return [undo]


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _served(
    module: ModuleType, names: list[str], before: Callable[[str], Any] | None
) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that loads qtune only when one of ``names`` is asked for."""

    def get(name: str) -> Any:
        if name in names:
            import qtune.quantization

            return getattr(qtune.quantization, name)
        if before is not None:
            return before(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    return get


def _gloo_without_gpu(function: Callable[..., Any], torch: ModuleType) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs)
        backend = str(given.arguments.get("backend") or "")
        if "nccl" not in backend.lower() or torch.cuda.is_available():
            return function(*args, **kwargs)
        given.arguments["backend"] = "gloo"
        given.arguments.pop("device_id", None)
        if _is_first(given.arguments.get("rank", -1)):
            _log.warning(
                "qtune.compat: there is no GPU: %s(%r) uses gloo", function.__name__, backend
            )
        return function(*given.args, **given.kwargs)

    return call


def _is_first(rank: int) -> bool:
    """One process of a run speaks."""
    return (int(os.environ.get("RANK", 0)) if rank < 0 else rank) == 0


def _no_choice_without_gpu(torch: ModuleType) -> Callable[..., None]:
    set_device: Callable[..., None] = torch.cuda.set_device

    @functools.wraps(set_device)
    def call(device: Any) -> None:
        if torch.cuda.is_available():
            return set_device(device)
        index = device if isinstance(device, int) else torch.device(str(device)).index
        if not index:  # one process of a run speaks
            _log.warning(
                "qtune.compat: there is no GPU: torch.cuda.set_device(%r) has no effect", device
            )
        return None

    return call
