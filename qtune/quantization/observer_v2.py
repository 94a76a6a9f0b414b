"""Facade: observers under the toolchain's path."""

from qtune.quantizers.clip import ClipObserver, ClipStdObserver
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.histogram import HistogramObserver
from qtune.quantizers.kl import KLObserver
from qtune.quantizers.mix import MixObserver
from qtune.quantizers.mse import MSEObserver
from qtune.quantizers.observer import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from qtune.quantizers.percentile import PercentileObserver

__all__ = [
    "ClipObserver",
    "ClipStdObserver",
    "FixedScaleObserver",
    "HistogramObserver",
    "KLObserver",
    "MSEObserver",
    "MinMaxObserver",
    "MixObserver",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "PercentileObserver",
]
