"""The states of a fake-quantize (numerics.md section 5). They belong to the user."""

from __future__ import annotations

import enum
import logging
from typing import Protocol, cast

from torch import nn

from qtune.errors import ArgumentError

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
        cast(_Stateful, module).state = state
    if not found:
        _log.warning(
            "set_fake_quantize: %s holds no fake-quantize; was it prepared?", type(model).__name__
        )
