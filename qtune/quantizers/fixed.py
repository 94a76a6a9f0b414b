"""An observer whose scale is given once and never updated."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from qtune.dtype import QuantDType
from qtune.errors import ArgumentError
from qtune.quantizers.observer import Observer
from qtune.quantizers.options import LastOptions


class FixedScaleObserver(Observer):
    """The scale is ``scale`` on the grid ``dtype`` whatever data come.

    On another grid it covers the same range: 1/128 for qint8 is 1/32768 for qint16.
    ``min_val`` and ``max_val`` still follow the data (they tell whether the scale covers them).
    ``scale``: a positive number, or a tensor with one element per channel. ``zero_point`` is 0.
    A loaded state replaces the scale only by one that was given by hand too.
    """

    is_fixed = True

    def __init__(
        self,
        scale: float | torch.Tensor,
        zero_point: int = 0,
        dtype: QuantDType | torch.dtype | str = "qint8",
        qscheme: torch.qscheme = torch.per_tensor_symmetric,
        ch_axis: int = -1,
        averaging_constant: float = 0.01,
        **options: Unpack[LastOptions],
    ) -> None:
        count = scale.numel() if isinstance(scale, torch.Tensor) else 1
        if ch_axis != -1 and count > 1 and options.get("channel_len") is None:
            options["channel_len"] = count
        super().__init__(averaging_constant, ch_axis, dtype, qscheme, **options)
        check_zero_point(zero_point)
        self.give_scale(checked_scale(scale, self.threshold.numel()), self.dtype)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        own = self.threshold.clone()
        super()._load_from_state_dict(*args, **kwargs)
        with torch.no_grad():
            self.threshold.copy_(torch.where(self.threshold > 0, self.threshold, own))

    def extra_repr(self) -> str:
        """The fixed scale and the observed range."""
        return f"scale={self.calculate_scale()}, zero_point=0, {super().extra_repr()}"


def checked_scale(scale: float | torch.Tensor, channels: int) -> torch.Tensor:
    """Return ``scale`` as float32 [channels]; raise ``ArgumentError`` unless positive, finite."""
    value = torch.as_tensor(scale).detach().to(torch.float32).reshape(-1)
    if value.numel() not in {1, channels} or not bool(((value > 0) & value.isfinite()).all()):
        wanted = (
            "1 positive, finite number"
            if channels == 1
            else (f"1 or {channels} positive, finite numbers, one per channel,")
        )
        raise ArgumentError(f"scale: expected {wanted} but got {scale!r}")
    return value.expand(channels).clone()


def check_zero_point(zero_point: int | torch.Tensor | None) -> None:
    """Raise ``ArgumentError`` unless every zero point is 0."""
    if zero_point is not None and bool((torch.as_tensor(zero_point) != 0).any()):
        raise ArgumentError(f"zero_point: the BPU is symmetric, expected 0 but got {zero_point}")
