"""``PACTFakeQuantize``: a learned clipping level (numerics.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from qtune.arith.quantize import SMALLEST_SCALE
from qtune.quantizers.constructor import Constructor
from qtune.quantizers.fixed import checked_scale
from qtune.quantizers.learned import LearnedFakeQuantize
from qtune.quantizers.observer import MovingAverageMinMaxObserver, Observer


class PACTFakeQuantize(LearnedFakeQuantize):
    """A ``FakeQuantize`` with the scale ``alpha / -qmin``, where ``alpha`` is a parameter.

    ``alpha`` is the threshold of numerics.md section 1: 128 steps of qint8. Its gradient is ``g``
    times the code at that end of the grid, divided by ``-qmin``, over what saturates (1 below,
    127/128 above for qint8), and 0 elsewhere.

    ``alpha`` starts at 6 (or the argument), so there is a scale without any data; CALIBRATION or a
    loaded state gives another start. For weights calibrate first: 6 is far above them. It is saved
    as the scale, of which it is an exact multiple. Other arguments as of ``FakeQuantize``.
    """

    learns = "alpha"
    learns_inside = False
    alpha: nn.Parameter

    def __init__(
        self,
        observer: type[Observer] | Constructor = MovingAverageMinMaxObserver,
        alpha: float | torch.Tensor = 6.0,
        channel_len: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(observer, channel_len, **options)
        self._store_scale(checked_scale(alpha, self.alpha.numel()) / -self.quant_min)
        self.observed.fill_(True)

    @property
    def floor(self) -> float:
        """Smallest alpha."""
        return float(SMALLEST_SCALE) * -self.quant_min

    def _register_scale(self, scale: torch.Tensor) -> None:
        self.register_parameter("alpha", nn.Parameter(scale * -self.quant_min))
        self.register_buffer("scale", scale)

    def _step(self) -> torch.Tensor:
        return self.alpha / -self.quant_min

    @torch.no_grad()
    def _keep_positive(self) -> None:
        super()._keep_positive()
        alpha, scale = self._parameters.get("alpha"), self._buffers.get("scale")
        if alpha is not None and scale is not None and not alpha.is_meta:
            follows = alpha.detach() / -self.quant_min
            if scale.shape == follows.shape and scale.device == follows.device:
                scale.copy_(follows)
            else:
                self._buffers["scale"] = follows

    @torch.no_grad()
    def _store_scale(self, scale: torch.Tensor) -> None:
        super()._store_scale(scale * -self.quant_min)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}alpha"]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        *args: Any,
    ) -> None:
        absent = len(missing_keys)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, *args
        )
        missing_keys[absent:] = [k for k in missing_keys[absent:] if k != f"{prefix}alpha"]
        loaded = self._buffers["scale"]
        if loaded is None or f"{prefix}scale" not in state_dict:
            return
        if bool(self.observed):
            self._store_scale(loaded)
        self.observed.fill_(True)
