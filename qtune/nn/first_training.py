"""Training that a user takes for calibration: said once, when a prepared model first trains."""

from __future__ import annotations

import logging

from torch import nn

from qtune.nn.qat import iter_stubs

_log = logging.getLogger(__name__)


def note_first_training(model: nn.Module) -> None:
    """Say in the log that this is QAT training, if no state was set and nothing is calibrated."""
    outputs = [q for _, kind, q in iter_stubs(model) if kind != "weight"]
    is_set = any(getattr(quantizer, "state_is_set", False) for quantizer in outputs)
    if not outputs or is_set or any(bool(quantizer.observed) for quantizer in outputs):
        return
    _log.warning(
        "this is QAT training: no state was set since prepare, the model is in training mode and "
        "nothing is calibrated, so it quantizes on the scales of the data seen so far. To "
        "calibrate, call set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION) before; if "
        "training is meant, set_fake_quantize(model, FakeQuantState.QAT) says so"
    )
