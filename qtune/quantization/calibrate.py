"""Calibration in one call, and loading what a calibration found."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from qtune.capture.inputs import as_inputs
from qtune.capture.inputs import batch_to_inputs as default_inputs
from qtune.errors import PrepareError
from qtune.nn.prepared import PreparedModel
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

_WHERE = "auto_calibrate"


def auto_calibrate(
    model: PreparedModel,
    data_loader: Iterable[Any],
    num_steps: int | None = None,
    batch_to_inputs: Callable[[Any], Any] | None = None,
) -> PreparedModel:
    """Calibrate ``model`` on the batches of ``data_loader`` and return it, ready for validation.

    The model runs in eval mode without gradients, in the state CALIBRATION, and is left in eval
    mode and VALIDATION. ``num_steps``: most batches to use. ``batch_to_inputs(batch)`` gives the
    example for one call (see ``prepare``); default ``qtune.capture.inputs.batch_to_inputs``: of
    ``(x, label)`` the first, where forward takes one argument. Raises ``PrepareError`` if there was
    no batch, or one that forward does not take.
    """
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    count = 0
    with torch.no_grad():
        for index, batch in enumerate(itertools.islice(data_loader, num_steps)):
            given = batch if batch_to_inputs is None else as_inputs(batch_to_inputs(batch), _WHERE)
            inputs = default_inputs(given, model, index, _WHERE)
            model(*inputs.args, **inputs.kwargs)
            count += 1
    if not count:
        raise PrepareError("auto_calibrate: the data loader gave no batch; nothing is calibrated")
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    return model


def load_calib_state_dict(model: PreparedModel, state_dict: Mapping[str, Any]) -> PreparedModel:
    """Load the state of a calibrated model into a model prepared in the same way; return it.

    Weights, statistics and scales; the state of the fake-quantizes stays the user's. Raises
    ``RuntimeError`` naming the keys where the models differ.
    """
    model.load_state_dict(state_dict, strict=True)
    return model
