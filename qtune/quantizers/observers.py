"""The observers by the names that qconfigs use.

The only such table: ``get_default_qconfig(activation_observer=..., weight_observer=...)`` looks its
names up here, so that a further kind is one more line.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qtune.quantizers.clip import ClipObserver, ClipStdObserver
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.histogram import HistogramObserver
from qtune.quantizers.kl import KLObserver
from qtune.quantizers.mix import MixObserver
from qtune.quantizers.mse import MSEObserver
from qtune.quantizers.observer import MinMaxObserver, Observer
from qtune.quantizers.percentile import PercentileObserver

OBSERVERS: Mapping[str, type[Observer]] = MappingProxyType(
    {
        "min_max": MinMaxObserver,
        "fixed_scale": FixedScaleObserver,
        "clip": ClipObserver,
        "percentile": PercentileObserver,
        "clip_std": ClipStdObserver,
        "mse": MSEObserver,
        "kl": KLObserver,
        "mix": MixObserver,
        "histogram": HistogramObserver,
    }
)
"""Class of each name. ``fixed_scale`` needs ``scale``, ``clip`` needs ``clip_value``."""
