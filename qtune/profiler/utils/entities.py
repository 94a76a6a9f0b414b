"""Facade: ``Metric`` under the toolchain's import path."""

from qtune.profiler.metric import Metric

__all__ = ["Metric"]
