"""An observer that keeps the histogram, so that another range can be taken without data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import nn

from qtune.arith.ranges import MSE_STEPS
from qtune.arith_fast.ranges import least_squares_range, mse_candidates, percentile_range
from qtune.dtype import QuantDType
from qtune.errors import ArgumentError, NotCalibratedError
from qtune.quantizers.batch_histogram import BINS
from qtune.quantizers.observer import HISTOGRAM
from qtune.quantizers.options import GRIDS, CommonOptions, grid_dtype, positive_number, whole_number
from qtune.quantizers.running_histogram import RunningHistogramObserver
from qtune.report.progress import progress

_log = logging.getLogger(__name__)

METHODS = ("mse", "percentile")


class HistogramObserver(RunningHistogramObserver):
    """A range searched on the histogram of all data seen, which is saved with the state.

    ``method``: ``"mse"`` (``method_kwargs``: ``stride``, 1) or ``"percentile"`` (``percentile``,
    99.99), as ``MSEObserver`` and ``PercentileObserver`` search, but over all data at once.
    :meth:`reset_scale` takes another range from the histograms of a whole model.
    """

    def __init__(
        self,
        bins: int = BINS,
        method: str = "mse",
        method_kwargs: Mapping[str, Any] | None = None,
        *common: Any,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(bins, *common, **options)
        self.method, self.method_argument = checked_method(method, method_kwargs)

    @staticmethod
    @torch.no_grad()
    def reset_scale(
        model: nn.Module,
        method: str = "percentile",
        method_kwargs: Mapping[str, Any] | None = None,
        dtype: QuantDType | torch.dtype | str | None = None,
        prefix: str = "",
    ) -> None:
        """Recompute the scales of ``model`` from the histograms it holds, without data.

        ``method``, ``method_kwargs``: as for the class; they also hold for later data. ``dtype``:
        only fake-quantizes on this grid (default: all). ``prefix``: only those whose module is
        ``prefix`` or inside it. A scale given by hand stays, a learned one begins anew.

        Raises ``ArgumentError`` where nothing is left to reset, ``NotCalibratedError`` naming all
        that hold no data; nothing is changed then, nor where Ctrl-C ends the search.
        """
        chosen = checked_method(method, method_kwargs)
        grid = None if dtype is None else grid_dtype(dtype)
        found = _quantizers(model, grid, prefix)
        if not found:
            raise ArgumentError(
                f"reset_scale: no fake-quantize with a HistogramObserver"
                f"{'' if grid is None else f' of dtype {grid}'}"
                f"{f' under {prefix!r}' if prefix else ''}; prepare the model with "
                "get_qconfig(observer=HistogramObserver)"
            )
        empty = [name for name, module in found.items() if not _observer(module).has_data]
        if empty:
            raise NotCalibratedError(
                f"reset_scale: no histogram of data in: {', '.join(empty)}. Calibrate the model, "
                "or load the state of one that was calibrated with HistogramObserver."
            )
        modules = progress(found.values(), "reset scale", unit="scale")
        ranges = [_observer(module)._searched_by(*chosen) for module in modules]
        for module, absmax in zip(found.values(), ranges, strict=True):
            observer = _observer(module)
            observer.method, observer.method_argument = chosen
            observer.absmax.copy_(absmax)
            observer._is_partial = False
            module._refresh_scale()

    @property
    def has_data(self) -> bool:
        """Whether the histogram holds any."""
        return bool(self.histogram.any())

    def _search(self, grid: QuantDType) -> torch.Tensor:
        return self._range_by(self.method, self.method_argument, grid)

    def _searched_by(self, method: str, argument: float) -> torch.Tensor:
        """The range of each of ``GRIDS`` that another method finds: float32 [3, channels]."""
        return torch.stack([self._range_by(method, argument, grid) for grid in GRIDS])

    def _range_by(self, method: str, argument: float, grid: QuantDType) -> torch.Tensor:
        if method == "percentile":
            return percentile_range(self.histogram, self.bin_width, self.peak, float(argument))
        tried = mse_candidates(self.peak, int(argument))
        return least_squares_range(self.histogram, self.bin_width, tried, grid)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in HISTOGRAM:
            destination[prefix + name] = getattr(self, name)

    def _restart(self, loaded: list[torch.Tensor]) -> None:
        super()._restart(loaded)
        own = [getattr(self, name) for name in HISTOGRAM]
        if [part.shape for part in loaded] == [part.shape for part in own]:
            for name, part in zip(HISTOGRAM, loaded, strict=True):
                getattr(self, name).copy_(part)
            self._is_partial = self._is_partial and not self.has_data
        elif loaded:
            _log.warning(
                "%s: the loaded histogram of shape %s is not taken, this one has %s",
                self._where,
                tuple(loaded[0].shape),
                tuple(self.histogram.shape),
            )


def checked_method(method: str, method_kwargs: Mapping[str, Any] | None) -> tuple[str, float]:
    """The method and its one argument; raise ``ArgumentError`` for what it does not take."""
    if method not in METHODS:
        raise ArgumentError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    name, default = ("stride", 1) if method == "mse" else ("percentile", 99.99)
    given = dict(method_kwargs or {})
    value = given.pop(name, default)
    if given:
        raise ArgumentError(
            f"method_kwargs: {method} takes {name} only, got {', '.join(map(str, given))}"
        )
    if method == "mse":
        return method, whole_number(name, value, 1, MSE_STEPS)
    return method, positive_number(name, value, 100.0)


def _quantizers(model: nn.Module, grid: QuantDType | None, prefix: str) -> dict[str, Any]:
    """The fake-quantizes by path that hold a HistogramObserver and fit ``grid`` and ``prefix``."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(getattr(module, "activation_post_process", None), HistogramObserver)
        and (grid is None or _observer(module).dtype is grid)
        and (not prefix or f"{path}.".startswith(f"{prefix}."))
    }


def _observer(module: Any) -> HistogramObserver:
    observer: HistogramObserver = module.activation_post_process
    return observer
