"""The yardstick: what a naive min-max int8 simulation makes of a net, in plain torch.

Only conv and linear are quantized: weights per channel and inputs per tensor, each by its plain
min-max range, batch norm folded. No bias, requantize, table or pool is simulated.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def _fold(module: nn.Module) -> None:
    previous: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and previous and isinstance(previous[1], nn.Conv2d):
            setattr(module, previous[0], fuse_conv_bn_eval(previous[1], child))
            setattr(module, name, nn.Identity())
        else:
            _fold(child)
        previous = (name, child)


def _fake(x: Tensor, absmax: Tensor) -> Tensor:
    scale = absmax.clamp_min(1e-12) / 127.5
    return torch.clamp(torch.floor(x / scale + 0.5), -128, 127) * scale


class _Observe:
    def __init__(self) -> None:
        self.absmax = torch.zeros(())
        self.on = True

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = args
        if self.on:
            self.absmax = torch.maximum(self.absmax, x.abs().max())
            return args
        return (_fake(x, self.absmax),)


def naive_int8(model: nn.Module, calibration: Iterable[Tensor]) -> nn.Module:
    """Return a copy of ``model`` that simulates naive int8."""
    model = copy.deepcopy(model).eval()
    _fold(model)
    observers = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            absmax = module.weight.detach().abs().flatten(1).amax(1)
            shape = (-1,) + (1,) * (module.weight.dim() - 1)
            module.weight.data = _fake(module.weight.data, absmax.view(shape))
            observers.append(_Observe())
            module.register_forward_pre_hook(observers[-1])
    with torch.no_grad():
        for batch in calibration:
            model(batch)
    for observer in observers:
        observer.on = False
    return model


def sqnr_db(reference: Tensor, other: Tensor) -> float:
    """Signal to quantization noise of ``other`` in dB."""
    noise = (reference.double() - other.double()).square().sum()
    return float(10 * torch.log10(reference.double().square().sum() / noise))
