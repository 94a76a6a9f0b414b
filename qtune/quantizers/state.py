"""The states of a fake-quantize (numerics.md section 5). They belong to the user."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from typing import Protocol, cast

from torch import nn

from qtune.errors import ArgumentError
from qtune.quantizers.processes import in_several_processes

_log = logging.getLogger(__name__)


class FakeQuantState(enum.Enum):
    """What a fake-quantize does when it is called."""

    QAT = "qat"
    """Observes while in training mode, and fake-quantizes."""
    CALIBRATION = "calibration"
    """Only observes, in training and in eval mode."""
    VALIDATION = "validation"
    """Only fake-quantizes."""
    _FLOAT = "float"
    """Neither: the value passes unchanged."""


class _Stateful(Protocol):
    state: FakeQuantState
    state_is_set: bool


def set_fake_quantize(model: nn.Module, state: FakeQuantState) -> None:
    """Set the state of every fake-quantize in ``model``, which may be a sub-module.

    Nothing else changes it: not ``train()``, ``eval()``, ``load_state_dict``, copying, pickling.
    """
    if not isinstance(state, FakeQuantState):
        known = ", ".join(str(s) for s in FakeQuantState)
        raise ArgumentError(
            f"set_fake_quantize: expected a FakeQuantState ({known}) but got {state!r} "
            f"(type={type(state).__name__})"
        )
    found = [m for m in model.modules() if isinstance(getattr(m, "state", None), FakeQuantState)]
    for module in found:
        stateful = cast(_Stateful, module)
        stateful.state, stateful.state_is_set = state, True
    if state is FakeQuantState.CALIBRATION:
        _warn_unsynchronized(found)
    if not found:
        _log.warning(
            "set_fake_quantize: %s holds no fake-quantize; was it prepared?", type(model).__name__
        )


def _warn_unsynchronized(found: Sequence[nn.Module]) -> None:
    """Say that each process calibrates on its own data only (a documented misconception).

    Weights are the same in every process, so their ranges need no exchange.
    """
    if not in_several_processes():
        return
    observers = [getattr(module, "activation_post_process", None) for module in found]
    alone = [
        observer
        for observer in observers
        if not getattr(observer, "is_sync_quantize", True)
        and getattr(observer, "ch_axis", 0) == -1
        and not getattr(observer, "is_fixed", False)
    ]
    if alone:
        _log.warning(
            "set_fake_quantize: multi-process calibration without sync: %d observer(s) see the "
            "data of their own process only, so scales differ between processes. Calibrate in one "
            "process, or give the observers is_sync_quantize=True",
            len(alone),
        )
