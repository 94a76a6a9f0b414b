"""The fake-quantize module: observes, quantizes and dequantizes, as its state says."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from qtune.arith.quantize import scale_from_absmax
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError
from qtune.quantizers.constructor import Constructor
from qtune.quantizers.fixed import check_zero_point, checked_scale
from qtune.quantizers.float32 import Float32Module
from qtune.quantizers.loaded_scale import as_power_of_two, settle_loaded_scale
from qtune.quantizers.observer import MovingAverageMinMaxObserver, Observer
from qtune.quantizers.onnx_form import onnx_form
from qtune.quantizers.options import grid_dtype
from qtune.quantizers.scope import current_scope, not_calibrated
from qtune.quantizers.state import FakeQuantState
from qtune.quantizers.uncompiled import runs_eagerly

_POWER_OF_TWO = "power_of_two"
_GRID = "dtype"

HEADROOM = 2.0
"""How much further than observed the range of values with known bounds reaches."""

BEYOND = 1.01
"""How far beyond its bound a sum of rounded terms may lie."""


class FakeQuantize(Float32Module):
    """``clamp(floor(x / scale + 0.5), qmin, qmax) * scale`` with an observer for the scale.

    Arguments: ``observer`` is an ``Observer`` class (or its ``with_args``), which gets
    ``observer_kwargs`` (``dtype``, ``ch_axis``, ``averaging_constant``, ...). ``saturate``: what
    leaves the grid has no gradient (``None``: as ``True``); ``False`` passes it on everywhere.
    ``in_place``: where no gradient is recorded, the result overwrites ``x``. ``compat_mask``:
    backward keeps one bit per element, else a byte. ``channel_len``: channels along ``ch_axis``.
    ``fast_training``: scale and fake-quantize are one call; that can't be turned off. ``name``: how
    errors call it.

    ``state`` decides what a call does (numerics.md section 5): CALIBRATION observes, VALIDATION
    quantizes, QAT quantizes and also observes while in training mode, ``_FLOAT`` does neither.
    Asked to quantize before any data came, it raises ``NotCalibratedError`` (inside a
    ``forward_scope`` at its end, with all names). Empty tensors pass in every state.

    ``power_of_two``: every scale, a given one too, is rounded up to a power of two (consistency
    levels 1 to 4); see :meth:`use_power_of_two`.

    ``bounds``: two numbers that positive values can't leave whatever the input. Within them the
    observed range is widened by a factor of 2 either way (numerics.md section 3, softmax).

    Buffers: ``scale`` float32 [C]; ``observed`` bool, whether there is a scale.
    """

    power_of_two = False
    bounds: tuple[float, float] | None = None
    _loaded_power_of_two = False
    _loaded_grid = ""

    scale: torch.Tensor
    observed: torch.Tensor
    activation_post_process: Observer

    def __init__(
        self,
        observer: type[Observer] | Constructor = MovingAverageMinMaxObserver,
        saturate: bool | None = None,
        in_place: bool = False,
        compat_mask: bool = True,
        channel_len: int | None = None,
        fast_training: bool = True,
        *,
        name: str = "",
        **observer_kwargs: Any,
    ) -> None:
        super().__init__()
        if not fast_training:
            raise ArgumentError(
                "FakeQuantize: fast_training=False is not offered, scale and fake-quantize are one "
                "call with the same numbers; leave it out"
            )
        self.saturate = saturate is not False
        self.in_place = bool(in_place)
        self.compat_mask = bool(compat_mask)
        if channel_len is not None:
            observer_kwargs["channel_len"] = channel_len
        self.activation_post_process = _build(observer, observer_kwargs)
        self.name = name
        self.state = FakeQuantState.QAT
        threshold = self.activation_post_process.threshold
        given = self.activation_post_process.is_fixed
        self._register_scale(torch.ones_like(threshold))
        self.register_buffer("observed", torch.tensor(given, device=threshold.device))
        if given:
            self._refresh_scale()
        self.register_load_state_dict_post_hook(settle_loaded_scale)  # type: ignore[no-untyped-call]

    @classmethod
    def with_args(cls, **kwargs: Any) -> Constructor:
        """This class with some arguments, to be completed and called later."""
        return Constructor(cls, kwargs)

    @property
    def name(self) -> str:
        """How errors call this fake-quantize."""
        return self.activation_post_process.name

    @name.setter
    def name(self, value: str) -> None:
        self.activation_post_process.name = value

    def _is_unsized(self) -> bool:
        return self.activation_post_process.channel_len is None

    @property
    def dtype(self) -> QuantDType:
        """The grid."""
        return self.activation_post_process.dtype

    @property
    def ch_axis(self) -> int:
        """Channel axis, -1 for one scale."""
        return self.activation_post_process.ch_axis

    @property
    def quant_min(self) -> int:
        """Smallest code."""
        return self.dtype.qmin

    @property
    def quant_max(self) -> int:
        """Largest code."""
        return self.dtype.qmax

    @runs_eagerly
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Observe and fake-quantize ``x`` (floating, any strides) as the state says.

        Returns the dtype of ``x``. Raises ``NonFiniteError`` on NaN while it observes.
        """
        if self.state is FakeQuantState._FLOAT:
            return x
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise ArgumentError(
                f"{self._where}: expected a floating torch tensor but got {got}; "
                "convert it before the call, nothing is converted silently"
            )
        if self.observes:
            self._observe(x)
        if self.state is FakeQuantState.CALIBRATION or x.numel() == 0:
            return x
        if not bool(self.observed):
            return self._pass_unobserved(x)
        if torch.onnx.is_in_onnx_export():
            limits = float(self.quant_min), float(self.quant_max)
            return onnx_form(x, self.scale, limits, self.ch_axis)
        return self._quantize(x)

    @property
    def is_fixed(self) -> bool:
        """Whether the scale was given from the start, so that data never change it."""
        return self.activation_post_process.is_fixed

    def _quantize(self, x: torch.Tensor) -> torch.Tensor:
        grid = self.quant_min, self.quant_max
        if self.in_place and not (torch.is_grad_enabled() and x.requires_grad):
            return x.copy_(fake_quantize(x, self.scale, *grid, self.ch_axis))
        return fake_quantize(
            x,
            self.scale,
            *grid,
            self.ch_axis,
            saturate=self.saturate,
            packed=self.compat_mask,
        )

    @torch.no_grad()
    def set_qparams(
        self, scale: float | torch.Tensor, zero_point: int | torch.Tensor | None = None
    ) -> None:
        """Set the scale by hand; it stays, also when data are observed later.

        ``scale``: positive, one number or one per channel. ``zero_point``: ``None`` or 0.
        """
        check_zero_point(zero_point)
        value = checked_scale(scale, self.scale.numel())
        self.activation_post_process.give_scale(value, self.dtype)
        self._refresh_scale()

    @torch.no_grad()
    def set_dtype(self, dtype: QuantDType | torch.dtype | str) -> None:
        """Change the grid; the scale follows from the statistics, as if observed on it."""
        self.activation_post_process.dtype = grid_dtype(dtype)
        if bool(self.observed):
            self._refresh_scale()

    @torch.no_grad()
    def observe_anew(self, x: torch.Tensor) -> None:
        """Forget the statistics and take them from ``x`` alone, whatever the state."""
        self.activation_post_process.forget()
        self._observe(x)

    def scale_on(self, dtype: QuantDType) -> torch.Tensor:
        """The float32 [C] scale that :meth:`set_dtype` would give."""
        return self._settled_scale(dtype)

    @property
    def is_quantizing(self) -> bool:
        """Whether a call changes values now: by the state, and because there is a scale."""
        return self.state in _QUANTIZES and bool(self.observed)

    @torch.no_grad()
    def use_power_of_two(self) -> None:
        """Round the scale, now and whenever it changes, up to a power of two."""
        self.power_of_two = True
        if bool(self.observed):
            self._refresh_scale()

    def observed_range(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Smallest and largest value that data had and that the scale covers, float32 [C] each.

        Where no data were seen, the range of the scale. A scale that was rounded up to a power of
        two covers more than the data had: the side that decided it then reaches to its end.
        """
        scale = self.scale.detach()
        low, high = self.quant_min * scale, self.quant_max * scale
        observer = self.activation_post_process
        if not bool(observer.observed):
            return low, high
        least, most = observer.min_val, observer.max_val
        if self.bounds is not None:
            lowest, highest = self._present_bounds()
            least = torch.minimum(least, torch.maximum(least / HEADROOM, lowest))
            most = torch.maximum(most, torch.minimum(most * HEADROOM, highest))
        if self.power_of_two:
            least = torch.where(-least > most, low, least)
            most = torch.where(most >= -observer.min_val, high, most)
        return torch.maximum(least, low), torch.minimum(most, high)

    def _take_loaded(self, scale: torch.Tensor) -> None:
        """Take over a scale that does not follow from the statistics."""
        self.set_qparams(scale)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        facts = getattr(destination, "_metadata", {}).get(prefix[:-1], {})
        facts[_POWER_OF_TWO] = self.power_of_two
        facts[_GRID] = self.dtype.name

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, *args: Any
    ) -> None:
        facts = local_metadata or {}
        self._loaded_power_of_two = facts.get(_POWER_OF_TWO, self.power_of_two)
        self._loaded_grid = facts.get(_GRID, self.dtype.name)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    @property
    def _where(self) -> str:
        return self.name or type(self).__name__

    @property
    def observes(self) -> bool:
        """Whether a call takes its data into the statistics now."""
        if self.state is FakeQuantState.QAT:
            return self.training
        return self.state is FakeQuantState.CALIBRATION

    def _observe(self, x: torch.Tensor) -> None:
        observer = self.activation_post_process
        observer(x)
        if bool(observer.observed) and self._follows_data():
            self._refresh_scale()

    def _follows_data(self) -> bool:
        """Whether the scale is that of the statistics now."""
        return True

    def _register_scale(self, scale: torch.Tensor) -> None:
        self.register_buffer("scale", scale)

    def _store_scale(self, scale: torch.Tensor) -> None:
        if scale.shape != self.scale.shape:
            self.scale = torch.ones_like(scale)
        self.scale.copy_(scale)

    @torch.no_grad()
    def _refresh_scale(self) -> None:
        if self.scale.is_meta:
            return
        self._store_scale(self._settled_scale(self.dtype))
        self.observed.fill_(True)

    def _settled_scale(self, grid: QuantDType) -> torch.Tensor:
        scale = self._computed_scale(grid)
        return as_power_of_two(scale) if self.power_of_two else scale

    def _computed_scale(self, grid: QuantDType) -> torch.Tensor:
        """The observer's scale on ``grid``, with headroom where there are bounds."""
        observer = self.activation_post_process
        scale = observer.calculate_scale(grid)
        if self.bounds is None or bool((observer.threshold > 0).any()):
            return scale
        _, highest = self._present_bounds()
        bound = torch.as_tensor(scale_from_absmax(highest.cpu().numpy(), grid))
        return torch.maximum(scale, torch.minimum(HEADROOM * scale, bound.to(scale.device)))

    def _present_bounds(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The bounds, float32 [C] each; 0 and the largest float where data went beyond them.

        A bound that counts elements (the sum of a softmax) is that of the example's size; data of
        a larger size show that it is not theirs.
        """
        observer = self.activation_post_process
        least, most = observer.min_val, observer.max_val
        low, high = self.bounds or (0.0, math.inf)
        beyond = (least * BEYOND < low) | (most > high * BEYOND)
        largest = torch.finfo(torch.float32).max
        return (
            torch.full_like(least, low).masked_fill(beyond, 0.0),
            torch.full_like(most, high).masked_fill(beyond, largest),
        )

    def _pass_unobserved(self, x: torch.Tensor) -> torch.Tensor:
        scope = current_scope()
        if scope is None:
            raise not_calibrated([self.uncalibrated_name])
        scope.unobserved.append(self.uncalibrated_name)
        return x

    @property
    def uncalibrated_name(self) -> str:
        """How errors about a missing scale call this fake-quantize, with what it waits for."""
        waiting = self.activation_post_process.waiting
        return f"{self._where} ({waiting})" if waiting else self._where

    def extra_repr(self) -> str:
        """The settings and scales, as the documents print them."""
        enabled = torch.tensor([int(self.state in _QUANTIZES)], dtype=torch.uint8)
        observes = torch.tensor([int(self.state in _OBSERVES)], dtype=torch.uint8)
        zero_point = torch.zeros(self.scale.numel(), dtype=torch.int64)
        return (
            f"fake_quant_enabled={enabled}, observer_enabled={observes},            "
            f"quant_min={self.quant_min}, quant_max={self.quant_max}, dtype={self.dtype}, "
            f"qscheme={self.activation_post_process.qscheme}, ch_axis={self.ch_axis},         "
            f"scale={self.scale.detach()}, zero_point={zero_point}"
        )


_QUANTIZES = (FakeQuantState.QAT, FakeQuantState.VALIDATION)
_OBSERVES = (FakeQuantState.QAT, FakeQuantState.CALIBRATION)


def unobserved(model: nn.Module) -> list[str]:
    """The names of all fake-quantizes in ``model`` that have no scale yet."""
    return [
        module.name or path or type(module).__name__
        for path, module in model.named_modules()
        if isinstance(module, FakeQuantize) and not bool(module.observed)
    ]


def _build(observer: type[Observer] | Constructor, arguments: dict[str, Any]) -> Observer:
    cls = observer.cls if isinstance(observer, Constructor) else observer
    if not (isinstance(cls, type) and issubclass(cls, Observer)):
        raise ArgumentError(
            f"FakeQuantize: expected an observer class but got {observer!r}"
            f" (type={type(observer).__name__})"
        )
    known = inspect.signature(cls).parameters
    given = {*arguments, *(observer.arguments if isinstance(observer, Constructor) else ())}
    missing = [n for n, p in known.items() if p.default is p.empty and n not in given]
    if missing:
        raise ArgumentError(
            f"FakeQuantize: {cls.__name__} needs {', '.join(missing)}; give it beside the observer "
            "(in get_default_qconfig: in activation_qkwargs or weight_qkwargs)"
        )
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise ArgumentError(
            f"FakeQuantize: {cls.__name__} takes no {', '.join(unknown)}; it takes: "
            f"{', '.join(known)}"
        )
    return cast(Observer, observer(**arguments))
