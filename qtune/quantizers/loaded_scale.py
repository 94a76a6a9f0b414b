"""Scales that come with a loaded state, or from another grid."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from qtune.arith.quantize import power_of_two_scale
from qtune.dtype import QuantDType
from qtune.quantizers.options import GRIDS, grid_dtype

if TYPE_CHECKING:
    from qtune.quantizers.fake_quantize import FakeQuantize

_log = logging.getLogger(__name__)


def as_power_of_two(scale: torch.Tensor) -> torch.Tensor:
    """Each scale rounded up to a power of two, float32."""
    return torch.from_numpy(power_of_two_scale(scale.detach().cpu().numpy())).to(scale.device)


def same_range(scale: torch.Tensor, source: QuantDType, target: QuantDType) -> torch.Tensor:
    """The scale on ``target`` that covers what ``scale`` covers on ``source``; exact."""
    return scale * (source.qmin / target.qmin)


def settle_loaded_scale(module: FakeQuantize, incompatible: Any) -> None:
    """Bring a loaded scale to the module's own grid.

    The state may come from a model with another dtype here: then the scale follows from the loaded
    statistics. A scale that fits the statistics on no grid was learned or set by hand: it stays,
    or keeps its range where it comes from another grid.
    """
    observer, scale = module.activation_post_process, module.scale.detach().clone()
    if scale.is_meta or not (bool(module.observed) or observer.is_fixed):
        return
    has_source = bool(observer.observed) or bool((observer.threshold > 0).all())
    computed = [module._computed_scale(grid) for grid in GRIDS] if has_source else []
    if module._loaded_power_of_two:
        computed += [as_power_of_two(own) for own in computed]
    fits = any(torch.equal(own, scale) for own in computed)
    if not (fits or observer.is_fixed):
        module._take_loaded(same_range(scale, grid_dtype(module._loaded_grid), module.dtype))
        return
    module._refresh_scale()
    if not fits:
        _log.warning(
            "%s: the loaded scale %s is not taken, the configuration fixes it at %s",
            module.name or type(module).__name__,
            scale.tolist(),
            module.scale.tolist(),
        )
