"""``_LearnableFakeQuantize``: learned step size quantization (numerics.md section 5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qtune.quantizers.constructor import Constructor
from qtune.quantizers.fixed import check_zero_point, checked_scale
from qtune.quantizers.learned import LearnedFakeQuantize
from qtune.quantizers.observer import MovingAverageMinMaxObserver, Observer


class _LearnableFakeQuantize(LearnedFakeQuantize):
    """A ``FakeQuantize`` whose ``scale`` is a parameter (LSQ).

    Where a code is in range, the gradient of the scale is ``g * (code - x / scale)``, elsewhere
    ``g`` times the code at that end of the grid; summed over all elements that share the scale.
    ``use_grad_scaling`` multiplies it by ``1 / sqrt(x.numel() * qmax)``.

    ``scale``: a value to start from. ``None``: the calibrated scale (from CALIBRATION or a loaded
    state), else that of the first batch of training. ``zero_point``: 0. Other arguments as of
    ``FakeQuantize``; ``channel_len`` -1 is ``None``.
    """

    def __init__(
        self,
        observer: type[Observer] | Constructor = MovingAverageMinMaxObserver,
        scale: float | torch.Tensor | None = None,
        zero_point: float = 0.0,
        channel_len: int | None = None,
        use_grad_scaling: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(observer, None if channel_len == -1 else channel_len, **options)
        check_zero_point(torch.as_tensor(zero_point))
        self.use_grad_scaling = bool(use_grad_scaling)
        if scale is not None:
            self._store_scale(checked_scale(scale, self.scale.numel()))
            self.observed.fill_(True)

    def _register_scale(self, scale: torch.Tensor) -> None:
        self.register_parameter("scale", nn.Parameter(scale))

    def _gradient_factor(self, x: torch.Tensor) -> float:
        return (x.numel() * self.quant_max) ** -0.5 if self.use_grad_scaling else 1.0
