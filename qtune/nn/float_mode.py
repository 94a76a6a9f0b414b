"""Run a prepared model in other states for a moment, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState


@contextmanager
def all_float(model: nn.Module) -> Iterator[None]:
    """Every fake-quantize off, eval mode, no gradients; all restored after, whatever happens."""
    before = _Modes(model)
    try:
        model.eval()
        for quantizer in before.states:
            quantizer.state = FakeQuantState._FLOAT
        with torch.no_grad():
            yield
    finally:
        before.restore()


@contextmanager
def unquantized(model: nn.Module) -> Iterator[None]:
    """Every fake-quantize off; training flags stay as they are. States are restored after."""
    before = _Modes(model)
    try:
        for quantizer in before.states:
            quantizer.state = FakeQuantState._FLOAT
        yield
    finally:
        before.restore()


@contextmanager
def not_observing(model: nn.Module) -> Iterator[None]:
    """Fake-quantizes compute as they do now, but learn nothing. States and flags restored after.

    Those that never saw data let values pass.
    """
    before = _Modes(model)
    quantizing = (FakeQuantState.QAT, FakeQuantState.VALIDATION)
    try:
        for quantizer, state in before.states.items():
            ready = state in quantizing and bool(quantizer.observed)
            quantizer.state = FakeQuantState.VALIDATION if ready else FakeQuantState._FLOAT
        yield
    finally:
        before.restore()


@contextmanager
def undone_on_error(model: nn.Module) -> Iterator[None]:
    """If the block ends with an exception (Ctrl-C as well), everything is as before it.

    The states and scales of the fake-quantizes, what their observers know, training flags, and the
    buffers of the model.
    """
    modes, values = _Modes(model), _Values(model)
    try:
        yield
    except BaseException:
        modes.restore()
        values.restore()
        raise


class _Modes:
    """States of the fake-quantizes and training flags."""

    def __init__(self, model: nn.Module) -> None:
        quantizers = (m for m in model.modules() if isinstance(m, FakeQuantize))
        self.states = {quantizer: quantizer.state for quantizer in quantizers}
        self._training = {module: module.training for module in model.modules()}

    def restore(self) -> None:
        for quantizer, state in self.states.items():
            quantizer.state = state
        for module, flag in self._training.items():
            module.training = flag


class _Values:
    """Buffers of a model; of the fake-quantizes also parameters and plain attributes."""

    def __init__(self, model: nn.Module) -> None:
        self._tensors: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for module in model.modules():
            self._keep(module._buffers)
        inside = (m for m in model.modules() if isinstance(m, FakeQuantize))
        for part in dict.fromkeys(part for quantizer in inside for part in quantizer.modules()):
            self._keep(part._parameters)
            plain = {k: v for k, v in vars(part).items() if isinstance(v, _PLAIN)}
            self._attributes.append((vars(part), plain))

    def _keep(self, tensors: dict[str, Any]) -> None:
        for name, tensor in tensors.items():
            if tensor is not None:
                self._tensors.append((tensors, name, tensor, tensor.detach().clone()))

    @torch.no_grad()
    def restore(self) -> None:
        for owner, name, tensor, value in self._tensors:
            tensor.copy_(value)
            owner[name] = tensor
        for owner, plain in self._attributes:
            added = [k for k, v in owner.items() if isinstance(v, _PLAIN) and k not in plain]
            for name in added:
                del owner[name]
            owner.update(plain)


_PLAIN = (bool, int, float, str, type(None))
