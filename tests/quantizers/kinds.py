"""Every observer that takes its range from data, for tests of what they have in common."""

from qtune.quantizers.clip import ClipObserver, ClipStdObserver
from qtune.quantizers.histogram import HistogramObserver
from qtune.quantizers.kl import KLObserver
from qtune.quantizers.mix import MixObserver
from qtune.quantizers.mse import MSEObserver
from qtune.quantizers.observer import MinMaxObserver, MovingAverageMinMaxObserver
from qtune.quantizers.percentile import PercentileObserver

PER_CHANNEL = {
    "min_max": MinMaxObserver.with_args(),
    "percentile": PercentileObserver.with_args(),
    "mse": MSEObserver.with_args(),
    "mix": MixObserver.with_args(),
    "kl": KLObserver.with_args(),
    "histogram": HistogramObserver.with_args(),
    "clip": ClipObserver.with_args(clip_value=1e6),
    "clip_std": ClipStdObserver.with_args(),
}
"""Kinds that take a ``ch_axis``."""

KINDS = [*PER_CHANNEL.values(), MovingAverageMinMaxObserver.with_args()]
