"""Models prepared in eager mode: the user's own classes with operators in the place of layers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from qtune.modes import QATMode
from qtune.nn.first_training import note_first_training
from qtune.nn.prepared import PreparedModel
from qtune.nn.quantized import PreservedOp, QuantizedOp
from qtune.nn.untraceable import refuse_trace_of_prepared
from qtune.qconfig.plan import Resolution
from qtune.quantizers.scope import forward_scope

_KEY = "_qtune_eager"
_SCOPES = "_qtune_scopes"
_HAS_TRAINED = "_qtune_has_trained"

ToGraph = Callable[[nn.Module, Any, "EagerFacts"], PreparedModel]


@dataclass(frozen=True, slots=True)
class EagerFacts:
    """What ``prepare`` decided, kept at every module of the model.

    ``to_graph(model, example_inputs, facts)`` gives the graph form of the model or a part of it.
    """

    march: str
    resolution: Resolution | None
    qat_mode: QATMode
    to_graph: ToGraph

    def note(self, module: nn.Module) -> None:
        """Keep the facts at ``module``."""
        vars(module)[_KEY] = self


def eager_facts(model: Any) -> EagerFacts | None:
    """The facts of a model prepared in eager mode, of a part of it or of one made of such parts."""
    if not isinstance(model, nn.Module) or isinstance(model, PreparedModel):
        return None
    found = (vars(module).get(_KEY) for module in model.modules())
    return next((facts for facts in found if isinstance(facts, EagerFacts)), None)


def as_graph(model: Any, example_inputs: Any) -> Any:
    """``model``; if it was prepared in eager mode, its graph form, recorded on the example inputs.

    The graph form is a copy: the same weights, scales and states, and a graph for export, checks
    and comparisons.
    """
    facts = eager_facts(model)
    return model if facts is None else facts.to_graph(model, example_inputs, facts)


def observe_forward(model: nn.Module) -> None:
    """Let ``model`` (the root) run as a :class:`PreparedModel` does.

    All calls of one fake-quantize in a forward are one batch to its observer, and those that never
    saw data are named in one error at the end. The first training run says if it is an accident.
    """
    vars(model)[_SCOPES] = []
    model.register_forward_pre_hook(_enter)
    model.register_forward_hook(_leave, always_call=True)


def forget_forward(model: nn.Module) -> None:
    """Take back :func:`observe_forward`."""
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for key in [key for key, hook in hooks.items() if hook in (_enter, _leave)]:
            del hooks[key]


def _enter(model: nn.Module, args: Any) -> None:
    if model.training and not vars(model).get(_HAS_TRAINED):
        vars(model)[_HAS_TRAINED] = True
        note_first_training(model)
    _close_interrupted(model)
    scope: AbstractContextManager[Any] = forward_scope()
    scope.__enter__()
    vars(model)[_SCOPES].append(scope)
    if not any(isinstance(module, (QuantizedOp, PreservedOp)) for module in model.modules()):
        refuse_trace_of_prepared(model)  # a converted model keeps these hooks


def _close_interrupted(model: nn.Module) -> None:
    """End the scopes of forwards that Ctrl-C ended: torch calls no hook then."""
    scopes = vars(model)[_SCOPES]
    if not scopes:
        return
    frame: FrameType | None = sys._getframe(1)
    running = -1  # this call is running, and has no scope yet
    while frame is not None:
        is_call = frame.f_code is nn.Module._call_impl.__code__
        running += is_call and frame.f_locals.get("self") is model
        frame = frame.f_back
    while len(scopes) > max(running, 0):
        with suppress(KeyboardInterrupt):
            scopes.pop().__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def _leave(model: nn.Module, args: Any, result: Any) -> None:
    vars(model)[_SCOPES].pop().__exit__(None, None, None)
