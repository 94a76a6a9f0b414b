"""Observers: range statistics of tensors, and the scales that follow from them.

The rules are numerics.md sections 1 and 5. The state has constant size and lies in buffers only,
with the same names in every observer, so that a calibrated state loads into a model whose
observers are of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from qtune.arith.quantize import scale_from_absmax, scale_from_threshold
from qtune.dtype import QuantDType, qint4, qint8, qint16, quant_dtype
from qtune.errors import ArgumentError, NotCalibratedError
from qtune.quantizers.constructor import Constructor
from qtune.quantizers.float32 import Float32Module
from qtune.quantizers.scope import current_scope
from qtune.quantizers.statistics import Summary, batch_range

GRIDS = (qint4, qint8, qint16)
"""The dtypes that have a scale, in the order of the rows of ``Observer.absmax``."""


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
        if not 0 <= averaging_constant <= 1:
            raise ArgumentError(
                f"averaging_constant: expected 0 to 1 but got {averaging_constant!r}"
            )
        if not isinstance(ch_axis, int) or ch_axis < -1:
            raise ArgumentError(
                f"ch_axis: expected an axis from 0 on, or -1 for the whole tensor, but got "
                f"{ch_axis!r}"
            )
        if ch_axis == -1 and channel_len not in {None, 1}:
            raise ArgumentError(
                f"channel_len: {channel_len} channels need a ch_axis from 0 on, not -1"
            )
        self.averaging_constant = averaging_constant
        self.ch_axis = ch_axis
        self.dtype = grid_dtype(dtype)
        self.is_sync_quantize = is_sync_quantize
        self.name = ""
        self.channel_len = 1 if ch_axis == -1 else channel_len
        _check_scheme(qscheme, ch_axis)
        _check_grid(self.dtype, quant_min, quant_max)
        self._allocate(self.channel_len or 1, _device(factory_kwargs))

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
        if x.numel() and channels != self.channel_len:
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

    def _summarize(self, x: torch.Tensor, batch: Summary) -> Summary:
        return batch

    def _merge(self, first: Summary, second: Summary) -> Summary:
        """The union of two calls of one forward."""
        low, high = torch.minimum(first.low, second.low), torch.maximum(first.high, second.high)
        return Summary(low, high)

    def _update(self, batch: Summary) -> None:
        scope = current_scope()
        before = self._statistics()
        if scope is not None:
            before, earlier = scope.memory.get(self, (before, None))
            batch = batch if earlier is None else self._merge(earlier, batch)
            scope.memory[self] = (before, batch)
        self._average(before, batch)

    def _statistics(self) -> tuple[torch.Tensor, ...]:
        buffers = (self.observed, self.min_val, self.max_val, self.absmax)
        return tuple(buffer.clone() for buffer in buffers)

    def _average(self, before: tuple[torch.Tensor, ...], batch: Summary) -> None:
        observed, low, high, _ = before
        self.min_val.copy_(self._moved(observed, low, batch.low))
        self.max_val.copy_(self._moved(observed, high, batch.high))
        self.absmax.copy_(torch.maximum(self.min_val.abs(), self.max_val.abs()).expand(3, -1))
        self.observed.fill_(True)

    def _moved(self, seen: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        if self.averaging_constant in {0, 1}:
            average = old if self.averaging_constant == 0 else new
        else:
            average = old + self.averaging_constant * (new - old)
        return torch.where(seen, average, new)

    def extra_repr(self) -> str:
        """The observed range, as the documents print it."""
        if not bool(self.observed):
            return "min_val=tensor([]), max_val=tensor([])"
        return f"min_val={self.min_val}, max_val={self.max_val}"


class MinMaxObserver(Observer):
    """Minimum and maximum of each batch, moving averages of both."""


class MovingAverageMinMaxObserver(Observer):
    """As :class:`MinMaxObserver`, one range per tensor only."""

    def __init__(
        self,
        averaging_constant: float = 0.01,
        dtype: QuantDType | torch.dtype | str = "qint8",
        qscheme: torch.qscheme = torch.per_tensor_symmetric,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_sync_quantize: bool = False,
        factory_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            averaging_constant,
            -1,
            dtype,
            qscheme,
            quant_min,
            quant_max,
            is_sync_quantize,
            factory_kwargs,
        )


class MovingAveragePerChannelMinMaxObserver(Observer):
    """As :class:`MinMaxObserver`, one range per channel of ``ch_axis``."""

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
        dtype: QuantDType | torch.dtype | str = "qint8",
        qscheme: torch.qscheme = torch.per_channel_symmetric,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_sync_quantize: bool = False,
        factory_kwargs: Mapping[str, Any] | None = None,
        *,
        channel_len: int | None = None,
    ) -> None:
        if ch_axis == -1:
            raise ArgumentError("per-channel observer: ch_axis must be an axis from 0 on, not -1")
        super().__init__(
            averaging_constant,
            ch_axis,
            dtype,
            qscheme,
            quant_min,
            quant_max,
            is_sync_quantize,
            factory_kwargs,
            channel_len=channel_len,
        )


def grid_dtype(dtype: QuantDType | torch.dtype | str) -> QuantDType:
    """Return the dtype as one of ``GRIDS``; raise ``ArgumentError`` for any other."""
    grid = quant_dtype(dtype)
    if grid not in GRIDS:
        known = ", ".join(g.name for g in GRIDS)
        raise ArgumentError(
            f"expected a dtype with a scale of its own ({known}) but got {grid}; a qint32 output "
            "has no fake-quantize, leave it out of the qconfig"
        )
    return grid


def _check_scheme(qscheme: torch.qscheme, ch_axis: int) -> None:
    if qscheme not in {torch.per_tensor_symmetric, torch.per_channel_symmetric}:
        raise ArgumentError(f"qscheme: the BPU is symmetric (zero point 0), got {qscheme}")
    if qscheme == torch.per_channel_symmetric and ch_axis == -1:
        raise ArgumentError("qscheme torch.per_channel_symmetric needs a ch_axis from 0 on")


def _check_grid(dtype: QuantDType, low: int | None, high: int | None) -> None:
    for name, value, own in (("quant_min", low, dtype.qmin), ("quant_max", high, dtype.qmax)):
        if value is not None and value != own:
            raise ArgumentError(
                f"{name}: the grid of {dtype} is fixed at {dtype.qmin} to {dtype.qmax}, got {value}"
            )


def _device(factory_kwargs: Mapping[str, Any] | None) -> torch.device | str | None:
    given = dict(factory_kwargs or {})
    device: torch.device | str | None = given.pop("device", None)
    if given.pop("dtype", torch.float32) != torch.float32 or given:
        raise ArgumentError(
            f"factory_kwargs: expected a device (statistics are float32) but got {factory_kwargs}"
        )
    return device
