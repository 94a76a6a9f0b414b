"""Observers: range statistics of tensors, and the scales that follow from them.

The rules are numerics.md sections 1 and 5. The state has constant size and lies in buffers only,
with the same names in every observer, so that a calibrated state loads into a model whose
observers are of another kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import numpy as np
import torch

from qtune.arith.quantize import scale_from_absmax, scale_from_threshold
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError, NotCalibratedError
from qtune.quantizers.constructor import Constructor
from qtune.quantizers.float32 import Float32Module
from qtune.quantizers.options import (
    GRIDS,
    LastOptions,
    buffer_device,
    check_averaging,
    check_axis,
    check_grid,
    check_scheme,
    grid_dtype,
    whole_signature,
)
from qtune.quantizers.scope import current_scope
from qtune.quantizers.statistics import Summary, batch_range

HISTOGRAM = ("histogram", "bin_width", "peak")
"""What only the state of a ``HistogramObserver`` holds besides; other kinds leave it aside."""


class Observer(Float32Module):
    """Keeps the moving average of each batch's smallest and largest value.

    The first batch sets the statistics, later ones move them by ``averaging_constant * (new -
    old)``; 0 freezes them after the first. Calls inside one ``forward_scope`` are one batch, their
    union. Empty tensors are ignored, infinities left out, NaN raises ``NonFiniteError``.

    Arguments: ``ch_axis`` is the channel axis, -1 for one range per tensor. ``dtype`` is the grid
    of :meth:`calculate_scale`. ``quant_min``/``quant_max`` exist for the documented signature and
    must be the grid's own. ``is_sync_quantize`` takes each batch over all processes of
    ``torch.distributed``. ``factory_kwargs`` holds the ``device`` of the buffers, whose dtype is
    float32. ``channel_len``: channels along ``ch_axis``; the first data tell it where absent.

    Buffers: ``min_val``, ``max_val`` float32 [C]; ``absmax`` float32 [3, C], the range from which
    the scale of each of ``GRIDS`` follows; ``threshold`` float32 [C], above 0 where a scale was
    given by hand; ``observed`` bool, whether data came.
    """

    is_fixed = False
    """Whether the scale is given and data never change it."""

    __signature__: ClassVar[inspect.Signature]
    _settled: ClassVar[tuple[str, ...]] = ()
    """Arguments of the base class that a kind gives itself."""

    min_val: torch.Tensor
    max_val: torch.Tensor
    absmax: torch.Tensor
    threshold: torch.Tensor
    observed: torch.Tensor

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = -1,
        dtype: QuantDType | torch.dtype | str = "qint8",
        qscheme: torch.qscheme = torch.per_tensor_symmetric,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_sync_quantize: bool = False,
        factory_kwargs: Mapping[str, Any] | None = None,
        *,
        channel_len: int | None = None,
    ) -> None:
        super().__init__()
        check_averaging(averaging_constant)
        check_axis(ch_axis, channel_len)
        self.averaging_constant = averaging_constant
        self.ch_axis = ch_axis
        self.dtype = grid_dtype(dtype)
        self.is_sync_quantize = is_sync_quantize
        self.name = ""
        self.channel_len = 1 if ch_axis == -1 else channel_len
        check_scheme(qscheme, ch_axis)
        check_grid(self.dtype, quant_min, quant_max)
        self._allocate(self.channel_len or 1, buffer_device(factory_kwargs))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = whole_signature(cls, cls._settled)

    @classmethod
    def with_args(cls, **kwargs: Any) -> Constructor:
        """This class with some arguments, to be completed and called later."""
        return Constructor(cls, kwargs)

    @property
    def qscheme(self) -> torch.qscheme:
        """``torch.per_tensor_symmetric`` or ``torch.per_channel_symmetric``."""
        return torch.per_tensor_symmetric if self.ch_axis == -1 else torch.per_channel_symmetric

    @torch.no_grad()
    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Take ``x_orig`` (floating, any strides) into the statistics and return it."""
        x = x_orig.detach()
        if not self._wants(x):
            return x_orig
        channels = self._channels(x)
        batch = batch_range(x, self.ch_axis, channels, self._where, self.is_sync_quantize)
        if batch is not None:
            self._update(self._summarize(x, batch))
        return x_orig

    def calculate_scale(self, dtype: QuantDType | str | None = None) -> torch.Tensor:
        """The float32 [C] scale on the grid ``dtype`` (default: the observer's own).

        ``absmax / 127.5`` for qint8 and ``absmax / 32767.5`` for qint16, ``threshold / 128`` and
        ``threshold / 32768`` where the scale was given (numerics.md section 1).
        """
        grid = self.dtype if dtype is None else grid_dtype(dtype)
        given = self.threshold.cpu().numpy()
        if not (self.observed or (given > 0).all()):
            raise NotCalibratedError(f"{self._where}: no data was observed, so there is no scale")
        absmax = self.absmax[GRIDS.index(grid)].cpu().numpy()
        observed = scale_from_absmax(absmax, grid)
        scale = np.where(given > 0, scale_from_threshold(given, grid), observed)
        return torch.from_numpy(scale).to(self.threshold.device)

    @torch.no_grad()
    def give_scale(self, scale: torch.Tensor, dtype: QuantDType) -> None:
        """Fix the scale: from now on it is ``scale`` on ``dtype``, and the same range on others."""
        self.threshold.copy_(scale.to(self.threshold.device, torch.float32) * -dtype.qmin)

    @property
    def waiting(self) -> str:
        """What is missing for a scale although data came; empty where nothing is."""
        return ""

    def forget(self) -> None:
        """Drop what was observed and what was given: the state before the first data."""
        for buffer in self.buffers(recurse=False):  # in place: others may hold references
            buffer.zero_()

    @property
    def _where(self) -> str:
        return self.name or type(self).__name__

    def _allocate(self, channels: int, device: torch.device | str | None) -> None:
        for name, rows in (("min_val", ()), ("max_val", ()), ("absmax", (3,)), ("threshold", ())):
            zeros = torch.zeros((*rows, channels), dtype=torch.float32, device=device)
            self.register_buffer(name, zeros)
        self.register_buffer("observed", torch.tensor(False, device=device))

    def _wants(self, x: torch.Tensor) -> bool:
        if not x.is_floating_point():
            raise ArgumentError(
                f"{self._where}: expected a floating tensor but got dtype {x.dtype}; integer and "
                "bool tensors have no scale"
            )
        scope = current_scope()
        first_call = scope is None or self not in scope.memory
        if self.averaging_constant == 0 and first_call and bool(self.observed):
            return False
        return x.numel() > 0 or self.is_sync_quantize

    def _channels(self, x: torch.Tensor) -> int:
        if self.ch_axis == -1:
            return 1
        if self.ch_axis >= x.dim():
            raise ArgumentError(
                f"{self._where}: ch_axis {self.ch_axis} does not exist in a tensor of shape "
                f"{tuple(x.shape)}"
            )
        channels = x.shape[self.ch_axis]
        # an empty batch of one process takes part in the exchange with as many channels
        is_known = x.numel() or (self.is_sync_quantize and channels)
        if is_known and channels != self.channel_len:
            self._adopt_channels(channels)
        return self.channel_len or 1

    def _adopt_channels(self, channels: int) -> None:
        if self.channel_len is not None:
            raise ArgumentError(
                f"{self._where}: expected {self.channel_len} channels along axis {self.ch_axis} "
                f"but got {channels}"
            )
        given = self.threshold
        self.channel_len = channels
        self._allocate(channels, given.device)
        self.threshold.copy_(given)

    def _is_unsized(self) -> bool:
        return self.channel_len is None

    def _sized(self, channels: int) -> None:
        self.channel_len = channels

    def _is_first_call(self) -> bool:
        """Whether this is a batch of its own, not a further call of one forward."""
        scope = current_scope()
        return scope is None or self not in scope.memory

    def _summarize(self, x: torch.Tensor, batch: Summary) -> Summary:
        """What :meth:`_ranges` needs from one call."""
        return batch

    def _update(self, batch: Summary) -> None:
        before, scope = self._statistics(), current_scope()
        if scope is not None and self in scope.memory:
            before, earlier = scope.memory[self]
            batch = earlier.union(batch)
        if scope is not None:
            before = tuple(buffer.clone() for buffer in before)
            scope.memory[self] = (before, batch)
        self._average(before, batch)

    def _statistics(self) -> tuple[torch.Tensor, ...]:
        """What :meth:`_average` starts from; the buffers themselves."""
        return self.observed, self.min_val, self.max_val, self.absmax

    def _average(self, before: tuple[torch.Tensor, ...], batch: Summary) -> None:
        seen, low, high, absmax = before
        self.min_val.copy_(self._moved(seen, low, batch.low))
        self.max_val.copy_(self._moved(seen, high, batch.high))
        ranges = self._ranges(seen, absmax, batch)
        if ranges is not None:
            self.absmax.copy_(ranges)
            self.observed.fill_(True)

    def _ranges(
        self, seen: torch.Tensor, absmax: torch.Tensor, batch: Summary
    ) -> torch.Tensor | None:
        """The new ``absmax``, from the old one and the batch; ``None``: not yet."""
        return torch.maximum(self.min_val.abs(), self.max_val.abs()).expand(3, -1)

    def _moved(self, seen: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        if self.averaging_constant == 1 or not bool(seen):
            return new
        if self.averaging_constant == 0:
            return old
        return old + self.averaging_constant * (new - old)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing, unexpected, errors
        )
        other_kinds = {prefix + name for name in HISTOGRAM}
        unexpected[:] = [key for key in unexpected if key not in other_kinds]

    def extra_repr(self) -> str:
        """The observed range, as the documents print it."""
        if not bool(self.observed):
            return "min_val=tensor([]), max_val=tensor([])"
        return f"min_val={self.min_val}, max_val={self.max_val}"


class MinMaxObserver(Observer):
    """Minimum and maximum of each batch, moving averages of both."""


class MovingAverageMinMaxObserver(Observer):
    """As :class:`MinMaxObserver`, one range per tensor only."""

    _settled = ("ch_axis",)

    def __init__(
        self,
        averaging_constant: float = 0.01,
        dtype: QuantDType | torch.dtype | str = "qint8",
        qscheme: torch.qscheme = torch.per_tensor_symmetric,
        *common: Any,
        **options: Unpack[LastOptions],
    ) -> None:
        super().__init__(averaging_constant, -1, dtype, qscheme, *common, **options)


class MovingAveragePerChannelMinMaxObserver(Observer):
    """As :class:`MinMaxObserver`, one range per channel of ``ch_axis``."""

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
        dtype: QuantDType | torch.dtype | str = "qint8",
        qscheme: torch.qscheme = torch.per_channel_symmetric,
        *common: Any,
        **options: Unpack[LastOptions],
    ) -> None:
        if ch_axis == -1:
            raise ArgumentError("per-channel observer: ch_axis must be an axis from 0 on, not -1")
        if qscheme == torch.per_tensor_symmetric:
            raise ArgumentError(
                "per-channel observer: qscheme must be torch.per_channel_symmetric; "
                "MovingAverageMinMaxObserver has one range per tensor"
            )
        super().__init__(averaging_constant, ch_axis, dtype, qscheme, *common, **options)
