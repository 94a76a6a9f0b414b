"""What the fake-quantizes with a learned scale share."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from qtune.arith.quantize import SMALLEST_SCALE
from qtune.arith_fast.fake_quantize import learned_fake_quantize
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError, NonFiniteError
from qtune.quantizers.constructor import Constructor
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.loaded_scale import same_range
from qtune.quantizers.options import grid_dtype
from qtune.quantizers.processes import in_parallel_forward
from qtune.quantizers.scope import current_scope
from qtune.quantizers.state import FakeQuantState

_NOT_HERE = ("saturate", "in_place", "compat_mask")
"""Options of ``FakeQuantize`` about its own gradient and mask."""


class LearnedFakeQuantize(FakeQuantize):
    """A ``FakeQuantize`` whose scale is trained through the parameter named ``learns``.

    CALIBRATION takes the scale from the data, as in ``FakeQuantize``. In QAT the observer goes on
    with its statistics and the scale does not follow them. Whatever the optimizer does, the
    parameter is positive again before anything reads it: its absolute value, at least ``floor``.
    ``learns_inside``: values in range have a part in its gradient.
    A scale that became infinite or NaN raises ``NonFiniteError``. Under
    ``DistributedDataParallel`` a first scale comes from the data of all processes, with or without
    ``is_sync_quantize``: processes exchange gradients only, never the parameters themselves.

    The state has the names and shapes of that of ``FakeQuantize``; either loads the other's, and a
    ``FakeQuantize`` keeps a learned scale as one set by hand. Fixed scales and consistency levels
    from 1 on (powers of two) can't be learned and are refused.
    """

    learns = "scale"
    learns_inside = True

    def __init__(self, observer: Any, channel_len: int | None, **options: Any) -> None:
        refused = [name for name in _NOT_HERE if name in options]
        if refused:
            raise ArgumentError(
                f"{type(self).__name__}: {', '.join(refused)}: only FakeQuantize has that; leave it"
                " out"
            )
        kind = observer.cls if isinstance(observer, Constructor) else observer
        if getattr(kind, "is_fixed", False):
            raise ArgumentError(
                f"{type(self).__name__}: the scale of {kind.__name__} is fixed, so it can't be "
                "learned; use FakeQuantize, or another observer"
            )
        super().__init__(observer, channel_len=channel_len, **options)

    def __getattr__(self, name: str) -> Any:
        if name in {self.learns, "scale"}:
            self._keep_positive()
        return super().__getattr__(name)

    @property
    def floor(self) -> float:
        """Smallest value of the parameter."""
        return float(SMALLEST_SCALE)

    @torch.no_grad()
    def set_dtype(self, dtype: QuantDType | torch.dtype | str) -> None:
        """Change the grid; a calibrated scale follows from the statistics, a learned one keeps its
        range.
        """
        grid = grid_dtype(dtype)
        scale = self.scale_on(grid)
        self.activation_post_process.dtype = grid
        if bool(self.observed):
            self._store_scale(scale)

    @torch.no_grad()
    def scale_on(self, dtype: QuantDType) -> torch.Tensor:
        """The scale on another grid: from the statistics until it is learned, then same range."""
        scale = self.scale.detach()
        observer = self.activation_post_process
        is_known = bool(observer.observed) or bool((observer.threshold > 0).all())
        if is_known and torch.equal(scale, self._computed_scale(self.dtype)):
            return self._computed_scale(dtype)
        return same_range(scale, self.dtype, dtype)

    def use_power_of_two(self) -> None:
        """Refused: the steps of an optimizer would vanish in the rounding."""
        raise NotImplementedError(
            f"{self._where}: {type(self).__name__} at a consistency level from 1 on: a learned "
            "scale is no power of two. Use FakeQuantize there"
        )

    def _own(self) -> nn.Parameter:
        return cast(nn.Parameter, self._parameters[self.learns])

    @torch.no_grad()
    def _keep_positive(self) -> None:
        own = self._parameters.get(self.learns)
        if own is not None and not own.is_meta and not bool((own >= self.floor).all()):
            own.abs_().clamp_(min=self.floor)

    def _step(self) -> torch.Tensor:
        """The scale with its gradient."""
        return cast(torch.Tensor, getattr(self, self.learns))

    def _quantize(self, x: torch.Tensor) -> torch.Tensor:
        scale = self._step()
        if not bool(scale.isfinite().all()):
            raise NonFiniteError(
                f"{self._where}: training made the learned scale {scale.tolist()}. Lower the "
                "learning rate of the scales or clip their gradients"
            )
        return learned_fake_quantize(
            x,
            scale,
            self.quant_min,
            self.quant_max,
            self.ch_axis,
            inside=self.learns_inside,
            factor=self._gradient_factor(x),
        )

    def _gradient_factor(self, x: torch.Tensor) -> float:
        """What the gradient of the scale is multiplied by."""
        return 1.0

    def _follows_data(self) -> bool:
        """In CALIBRATION; and for the first forward where there is no scale to start from."""
        if self.state is FakeQuantState.CALIBRATION:
            return True
        scope = current_scope()
        if not bool(self.observed):
            if scope is not None:
                scope.memory[self] = True
            return True
        return scope is not None and self in scope.memory

    def _observe(self, x: torch.Tensor) -> None:
        observer = self.activation_post_process
        own = observer.is_sync_quantize
        is_start = self.state is not FakeQuantState.CALIBRATION and self._follows_data()
        # a parameter that starts from other values in each process would never become equal
        observer.is_sync_quantize = own or (is_start and in_parallel_forward())
        try:
            super()._observe(x)
        finally:
            observer.is_sync_quantize = own
        channels = observer.threshold.numel()
        if self._own().numel() != channels:
            self._store_scale(self.scale.detach().expand(channels))

    @torch.no_grad()
    def _store_scale(self, scale: torch.Tensor) -> None:
        fill(self._own(), scale)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self._keep_positive()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _take_loaded(self, scale: torch.Tensor) -> None:
        self._store_scale(scale)


def fill(parameter: nn.Parameter, value: torch.Tensor) -> None:
    """Give ``parameter`` a value; it stays the object that the optimizer knows."""
    if parameter.shape == value.shape:
        with torch.no_grad():
            parameter.copy_(value)
    else:
        parameter.data, parameter.grad = value.detach().clone(), None
