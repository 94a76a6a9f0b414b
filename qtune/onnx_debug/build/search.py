"""Which method of calibration a model, or each of its tensors, gets: the one with the least loss.

Loss is a metric between the outputs of the float model and of the calibrated one, averaged over
outputs and over the first ``ITEMS`` items of the calibration data. Of equal methods the first wins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from qtune.onnx_debug.build.calibrate import with_ranges
from qtune.onnx_debug.build.insert import grid_of
from qtune.onnx_debug.build.loss import badness, mean_score
from qtune.onnx_debug.build.march import Fitted
from qtune.onnx_debug.build.methods import Method
from qtune.onnx_debug.build.ranges import Statistics
from qtune.onnx_debug.calibrated import ACTIVATION, CalibrationNode
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.runner import Runner
from qtune.report.progress import progress

ITEMS = 16
"""Most items of the data that a search runs."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """The method of each tensor. ``losses``: metric of each method tried on the whole model."""

    ranges: Mapping[str, np.float32]
    methods: Mapping[str, Method]
    metric: str | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    level: str = "given"


class Search:
    """Tries methods on one model; its sessions are made once."""

    def __init__(
        self, proto: onnx.ModelProto, fit: Fitted, stats: Statistics, data: CalibrationDataSet
    ) -> None:
        self.fit, self.stats = fit, stats
        self.places = fit.placement.places
        made = with_ranges(proto, fit, stats.tops)
        self.names = dict(zip(made.names, self.places, strict=True))
        self.model = load_calibrated(made.proto)
        self.runner = Runner(self.model, data)
        self.items = range(min(len(data), ITEMS))

    def of_model(self, methods: Sequence[Method], metric: str) -> Choice:
        """One method for all tensors."""
        losses: dict[str, float] = {}
        nodes = [self._nodes(self.stats.ranges(method)) for method in methods]
        sums = [0.0] * len(methods)
        for index in progress(self.items, "searching methods", unit="item"):
            for number, on in enumerate(nodes):  # item by item: one float run serves all methods
                sums[number] += self._score(index, on, metric)
        for method, total in zip(methods, sums, strict=True):
            losses[method.label] = total / len(self.items)
            _log.info("calibration %s: %s %.6f", method.label, metric, losses[method.label])
        best = min(methods, key=lambda method: badness(metric, losses[method.label]))
        _log.info("calibration: %s is taken for the whole model", best.label)
        ranges = self.stats.ranges(best)
        return Choice(ranges, dict.fromkeys(ranges, best), metric, losses, "modelwise_search")

    def of_layers(self, methods: Sequence[Method], metric: str) -> Choice:
        """A method for each tensor, by the loss that quantizing it alone brings."""
        totals: dict[str, list[float]] = {name: [0.0] * len(methods) for name in self.stats.tops}
        for index in self.items:
            for root in progress(totals, "searching methods", unit="tensor"):
                for number, method in enumerate(methods):
                    on = self._nodes({root: self.stats.range(root, method)})
                    totals[root][number] += self._score(index, on, metric)
        chosen = {}
        for root, sums in totals.items():
            worst = [badness(metric, total) for total in sums]
            chosen[root] = methods[worst.index(min(worst))]
        for root, method in chosen.items():
            _log.info("calibration: %s gets %s", root, method.label)
        ranges = {root: self.stats.range(root, method) for root, method in chosen.items()}
        return Choice(ranges, chosen, metric, {}, "layerwise_search")

    def _nodes(self, ranges: Mapping[str, np.float32]) -> dict[str, CalibrationNode]:
        """Calibration nodes with these ranges; all others too where all tensors have one."""
        whole = len(ranges) == len(self.stats.tops)
        known = self.model.calibrations
        found = {name: known[name] for name in known if whole and name not in self.names}
        for name, place in self.names.items():
            node = known[name]
            if place.kind != ACTIVATION or place.root in self.fit.fixed:
                if whole:
                    found[name] = node
            elif place.root in ranges:
                grid = grid_of(np.asarray(ranges[place.root]), place.bits)
                found[name] = replace(node, scales=grid.scales, thresholds=grid.thresholds)
        return found

    def _score(self, index: int, on: Mapping[str, CalibrationNode], metric: str) -> float:
        given, got = self.runner.values(index), self.runner.values(index, on)
        return mean_score(metric, ((given[name], got[name]) for name in given))
