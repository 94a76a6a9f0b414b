"""Calibration in one call, and loading what a calibration found."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from qtune.capture.inputs import Inputs, as_inputs, naming
from qtune.capture.inputs import batch_to_inputs as default_inputs
from qtune.check.misconceptions import at_calibration
from qtune.errors import ArgumentError, PrepareError
from qtune.modes import QATMode
from qtune.nn.float_mode import undone_on_error
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_ops
from qtune.quantization.lockstep import exchanges_data, in_lockstep
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.processes import unwrapped
from qtune.quantizers.scope import forward_scope
from qtune.quantizers.state import FakeQuantState, set_fake_quantize
from qtune.report.progress import expected_length
from qtune.report.progress import progress as shown

_WHERE = "auto_calibrate"
_Model = TypeVar("_Model", bound=nn.Module)
_log = logging.getLogger(__name__)


def auto_calibrate(
    model: _Model,
    data_loader: Iterable[Any],
    num_steps: int | None = None,
    batch_to_inputs: Callable[[Any], Any] | None = None,
    *,
    progress: bool | None = None,
) -> _Model:
    """Calibrate ``model`` on the batches of ``data_loader`` and return it, ready for validation.

    The model runs in eval mode without gradients, in the state CALIBRATION, and is left in eval
    mode and VALIDATION. ``num_steps``: most batches to use. ``batch_to_inputs(batch)`` gives the
    example for one call (see ``prepare``); default ``qtune.capture.inputs.batch_to_inputs``: of
    ``(x, label)`` the first, where forward takes one argument. ``progress``: whether a bar on
    standard error shows how far it is; default where that is a terminal (see
    ``qtune.report.progress``).

    ``model`` may be wrapped in ``DistributedDataParallel``. Processes that exchange their data
    calibrate on as many batches as the one that has fewest; an error while one of them gets its
    batch is an error in all.

    Raises ``PrepareError`` if there was no batch, or one that forward does not take, and for a
    model that was not prepared. After any exception, an interrupt too, the model is as it was:
    states, training flags and statistics.
    """
    if not _quantizers(model):
        raise PrepareError(
            f"{_WHERE}: {type(model).__name__} holds no fake-quantize; pass what prepare returned, "
            "not the float model"
        )
    if num_steps is not None and num_steps < 1:
        raise PrepareError(f"{_WHERE}: num_steps must be 1 or more, got {num_steps!r}")
    if isinstance(data_loader, torch.Tensor):
        raise PrepareError(
            f"{_WHERE}: expected an iterable of batches but got one tensor of shape "
            f"{tuple(data_loader.shape)}, whose items are no batches; pass [tensor], or "
            "tensor.split(batch_size)"
        )
    inner = unwrapped(model)

    def to_inputs(step: int, batch: Any) -> Inputs:
        given = batch if batch_to_inputs is None else as_inputs(batch_to_inputs(batch), _WHERE)
        return default_inputs(given, inner, step, _WHERE)

    total, count = expected_length(data_loader, num_steps), 0
    with undone_on_error(model), torch.no_grad():
        set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
        calls = (to_inputs(*item) for item in enumerate(itertools.islice(data_loader, num_steps)))
        steps = in_lockstep(calls, _WHERE) if exchanges_data(model) else calls
        for inputs in shown(steps, "calibrate", unit="batch", total=total, shown=progress):
            named = naming(f"batch {count} of {_WHERE}", inputs)
            with named, forward_scope():  # ends with the step, whatever a forward leaves behind
                model(*inputs.args, **inputs.kwargs)
            count += 1
        if not count:
            raise PrepareError(f"{_WHERE}: the data loader gave no batch; nothing is calibrated")
        set_fake_quantize(model, FakeQuantState.VALIDATION)
    for text in at_calibration(inner) if isinstance(inner, PreparedModel) else ():
        _log.warning("%s: %s", _WHERE, text)
    return model


def load_calib_state_dict(model: _Model, state_dict: Mapping[str, Any]) -> _Model:
    """Load the state of a calibrated model into a model prepared in the same way; return it.

    Weights, statistics and scales; the state of the fake-quantizes stays the user's. Raises
    ``RuntimeError`` naming the keys where the models differ.
    """
    if not isinstance(state_dict, Mapping):
        raise ArgumentError(
            "load_calib_state_dict: expected the state of a calibrated model, such as "
            f"calib.state_dict() or torch.load(path), but got {type(state_dict).__name__}"
        )
    model.load_state_dict(state_dict, strict=True)
    return model


def load_observer_params(calibration_model: nn.Module, qat_model: nn.Module) -> nn.Module:
    """Load scales and statistics of every fake-quantize of one model into another; return that.

    Weights stay those of ``qat_model``, states too. Fake-quantizes belong together by their place
    in the model; those that only one of the two has are named in a warning (where only
    ``qat_model`` has them, they keep what they know). The observers may be of other kinds.

    Raises ``PrepareError`` where the models have no fake-quantize in common or numbers of channels
    differ; ``qat_model`` is unchanged then.
    """
    for model in (calibration_model, qat_model):
        if not isinstance(model, nn.Module):
            raise ArgumentError(
                "load_observer_params: expected two models, the calibrated one and the one to "
                f"load into, but got {type(model).__name__}; for a state use load_calib_state_dict"
            )
    _check_modes(calibration_model, qat_model)
    source, target = _quantizers(calibration_model), _quantizers(qat_model)
    common = [path for path in target if path in source]
    if not common:
        raise PrepareError(
            f"load_observer_params: the models have no fake-quantize in common ({len(source)} "
            f"here, {len(target)} there); prepare both from the same float model"
        )
    for path in common:
        ours, theirs = target[path].scale.numel(), source[path].scale.numel()
        if ours != theirs and bool(source[path].observed) and bool(target[path].observed):
            raise PrepareError(
                f"load_observer_params: {path} has {theirs} scales in the calibrated model and "
                f"{ours} in the other; prepare both from the same float model"
            )
    for path in common:
        target[path].load_state_dict(source[path].state_dict())
    for which, only in (("calibrated", source), ("other", target)):
        names = [path for path in only if path not in common]
        if names:
            _log.warning("load_observer_params: only the %s model has: %s", which, ", ".join(names))
    return qat_model


def _check_modes(calibration_model: nn.Module, qat_model: nn.Module) -> None:
    """Scales of weights mean something else in another QAT mode, while the model keeps norms."""
    modes = [getattr(m, "qat_mode", QATMode.FuseBN) for m in (calibration_model, qat_model)]
    keeps = any(op.kept is not None for m in (calibration_model, qat_model) for op in iter_ops(m))
    if keeps and modes[0] is not modes[1]:
        raise PrepareError(
            f"load_observer_params: the calibrated model was prepared in QAT mode {modes[0]}, the "
            f"other in {modes[1]}; the scales of their weights mean different things. Prepare both "
            "in one mode"
        )


def _quantizers(model: nn.Module) -> dict[str, FakeQuantize]:
    return {path: m for path, m in model.named_modules() if isinstance(m, FakeQuantize)}
