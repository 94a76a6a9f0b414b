"""Run a prepared model as the float model for a moment, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState


@contextmanager
def all_float(model: nn.Module) -> Iterator[None]:
    """Every fake-quantize off, eval mode, no gradients; all restored after, whatever happens."""
    quantizers = [m for m in model.modules() if isinstance(m, FakeQuantize)]
    states = [q.state for q in quantizers]
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        for quantizer in quantizers:
            quantizer.state = FakeQuantState._FLOAT
        with torch.no_grad():
            yield
    finally:
        for quantizer, state in zip(quantizers, states, strict=True):
            quantizer.state = state
        for module, flag in training.items():
            module.training = flag
