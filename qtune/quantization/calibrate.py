"""Calibration in one call, and loading what a calibration found."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from qtune.capture.inputs import Inputs, as_inputs
from qtune.errors import PrepareError
from qtune.nn.prepared import PreparedModel
from qtune.quantizers.state import FakeQuantState, set_fake_quantize


def auto_calibrate(
    model: PreparedModel,
    data_loader: Iterable[Any],
    num_steps: int | None = None,
    batch_to_inputs: Callable[[Any], Any] | None = None,
) -> PreparedModel:
    """Calibrate ``model`` on the batches of ``data_loader`` and return it, ready for validation.

    The model runs in eval mode without gradients, in the state CALIBRATION, and is left in eval
    mode and VALIDATION. ``num_steps``: most batches to use. ``batch_to_inputs(batch)`` gives the
    example for one call (see ``prepare``); default :func:`inputs_of_batch`. Raises
    ``PrepareError`` if there was no batch.
    """
    convert = batch_to_inputs or (lambda batch: inputs_of_batch(model, batch))
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    count = 0
    with torch.no_grad():
        for batch in itertools.islice(data_loader, num_steps):
            inputs = as_inputs(convert(batch), "auto_calibrate")
            model(*inputs.args, **inputs.kwargs)
            count += 1
    if not count:
        raise PrepareError("auto_calibrate: the data loader gave no batch; nothing is calibrated")
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    return model


def inputs_of_batch(model: PreparedModel, batch: Any) -> Inputs:
    """What a batch of a loader means as arguments.

    A tensor or dict is one argument. A tuple or list holds the positional arguments; where forward
    takes one argument only, its first element (the others are labels).
    """
    if not isinstance(batch, (tuple, list)) or hasattr(batch, "_fields"):
        return as_inputs(batch, "auto_calibrate")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = [p for p in model.signature.parameters.values() if p.kind in kinds]
    if len(takes) == 1 and batch:
        return as_inputs(batch[0], "auto_calibrate")
    return as_inputs(tuple(batch), "auto_calibrate")


def load_calib_state_dict(model: PreparedModel, state_dict: Mapping[str, Any]) -> PreparedModel:
    """Load the state of a calibrated model into a model prepared in the same way; return it.

    Weights, statistics and scales; the state of the fake-quantizes stays the user's. Raises
    ``RuntimeError`` naming the keys where the models differ.
    """
    model.load_state_dict(state_dict, strict=True)
    return model
