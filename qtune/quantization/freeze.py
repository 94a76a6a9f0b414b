"""Parts of a prepared model: the operators of a sub-module, and freezing them."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from qtune.errors import ArgumentError, NotCalibratedError
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import QATOp
from qtune.nn.qat.op import TRAINING
from qtune.quantizers.fake_quantize import FakeQuantize, unobserved
from qtune.quantizers.learned import LearnedFakeQuantize
from qtune.quantizers.scope import uncalibrated_text

_Module = TypeVar("_Module", bound=nn.Module)


def operators_in(model: PreparedModel, *paths: str) -> nn.ModuleList:
    """Every operator of the sub-modules at ``paths`` of ``model``, in order of execution.

    More than ``model.get_submodule(path)`` holds: functions that the sub-module's forward calls
    (``F.relu``, ``+``) are operators of the whole model with generated names, and are here too. For
    ``set_fake_quantize`` and :func:`freeze_qat_module`, which take modules. Raises
    ``ArgumentError`` for a path without operators.
    """
    found: dict[QATOp, None] = {}
    missing = dict.fromkeys(paths)
    for node, op in model.operators():
        inside = [path for path in paths if _belongs(op, node.meta, path)]
        for path in inside:
            found[op] = None
            missing.pop(path, None)
    if missing or not paths:
        calls = [(op, node.meta) for node, op in model.operators()]
        parts = ", ".join(
            name
            for name, _ in model.named_children()
            if name[0] != "_" and any(_belongs(op, meta, name) for op, meta in calls)
        )
        raise ArgumentError(
            f"operators_in: the model has no operator in {', '.join(map(repr, missing)) or '()'}; "
            f"its parts are: {parts}"
        )
    return nn.ModuleList(found)


def freeze_qat_module(module: _Module) -> _Module:
    """Fix ``module``, a calibrated part of a prepared model, for good; return it.

    Its parameters get no gradient, batch norms use and keep their running statistics, dropout is
    off, and observers keep what they have seen; neither ``train()`` nor ``set_fake_quantize`` on
    the whole model changes that. The fake-quantizes quantize on in QAT and VALIDATION.

    ``module`` may be :func:`operators_in` of a model. Raises ``NotCalibratedError`` naming the
    fake-quantizes that have no scale to keep.
    """
    missing = unobserved(module)
    if missing:
        raise NotCalibratedError(
            uncalibrated_text(
                "freeze_qat_module: ", missing, "Calibrate this part first, then freeze it."
            )
        )
    for part in module.modules():
        if isinstance(part, QATOp) and part.follows_training:
            part.attrs[TRAINING] = False
        if isinstance(part, LearnedFakeQuantize):  # CALIBRATION would take its scale from data
            part.set_qparams(part.scale.detach().clone())
        if isinstance(part, FakeQuantize):
            part.activation_post_process.averaging_constant = 0
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _belongs(op: QATOp, meta: dict[str, object], path: str) -> bool:
    return any(_is_inside(str(name), path) for name in (op.name, meta.get("scope") or ""))


def _is_inside(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")
