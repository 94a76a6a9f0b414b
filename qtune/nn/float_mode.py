"""Run a prepared model in other states for a moment, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from qtune.capture.restore import Restorer, to_the_end
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState


@contextmanager
def all_float(model: nn.Module) -> Iterator[None]:
    """Every fake-quantize and cast off, eval mode, no gradients; all restored, whatever happens."""
    before = _Modes(model)
    try:
        model.eval()
        for quantizer in before.states:
            quantizer.state = FakeQuantState._FLOAT
        with torch.no_grad():
            yield
    finally:
        to_the_end(before.restore)


@contextmanager
def all_quantizing(model: nn.Module) -> Iterator[None]:
    """Every fake-quantize quantizes and learns nothing, eval mode; all restored after."""
    before = _Modes(model)
    try:
        model.eval()
        for quantizer in before.states:
            quantizer.state = FakeQuantState.VALIDATION
        yield
    finally:
        to_the_end(before.restore)


@contextmanager
def unquantized(model: nn.Module) -> Iterator[None]:
    """Every fake-quantize off; training flags stay as they are. States are restored after."""
    before = _Modes(model)
    try:
        for quantizer in before.states:
            quantizer.state = FakeQuantState._FLOAT
        yield
    finally:
        to_the_end(before.restore)


@contextmanager
def not_observing(model: nn.Module) -> Iterator[None]:
    """Fake-quantizes compute as they do now, but learn nothing. States and flags restored after.

    Those that never saw data let values pass.
    """
    before = _Modes(model)
    quantizing = (FakeQuantState.QAT, FakeQuantState.VALIDATION)
    try:
        for quantizer, state in before.states.items():
            ready = state in quantizing and (
                isinstance(quantizer, FakeCast) or bool(quantizer.observed)
            )
            quantizer.state = FakeQuantState.VALIDATION if ready else FakeQuantState._FLOAT
        yield
    finally:
        to_the_end(before.restore)


@contextmanager
def undone_on_error(model: nn.Module) -> Iterator[None]:
    """If the block ends with an exception (Ctrl-C as well), everything is as before it.

    The states and scales of the fake-quantizes, what their observers know, training flags and
    buffers of the model, its gradients, and the random state of torch, Python and NumPy.
    """
    before, learned = Restorer(model), _LearnedValues(model)
    try:
        yield
    except BaseException:
        before.restore()
        learned.restore()
        raise


class _Modes:
    """States of the fake-quantizes and of the casts to float16, and training flags."""

    def __init__(self, model: nn.Module) -> None:
        quantizers = (m for m in model.modules() if isinstance(m, FakeQuantize | FakeCast))
        self.states = {quantizer: quantizer.state for quantizer in quantizers}
        self._training = {module: module.training for module in model.modules()}

    def restore(self) -> None:
        for quantizer, state in self.states.items():
            quantizer.state = state
        for module, flag in self._training.items():
            module.training = flag


class _LearnedValues:
    """Parameters of the fake-quantizes."""

    def __init__(self, model: nn.Module) -> None:
        inside = (m for m in model.modules() if isinstance(m, FakeQuantize))
        found = dict.fromkeys(p for quantizer in inside for p in quantizer.parameters())
        self._before = [(p, p.detach().clone(), p.grad) for p in found]

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, value, gradient in self._before:
            if parameter.shape == value.shape:
                parameter.copy_(value)
            else:
                parameter.data = value
            parameter.grad = gradient
