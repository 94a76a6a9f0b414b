"""The steps of a build in order: optimize, place, observe, choose, insert, correct, convert."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from qtune.bpu.convert import convert
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx
from qtune.march import March
from qtune.onnx_debug.build.bias import corrected
from qtune.onnx_debug.build.calibrate import with_ranges
from qtune.onnx_debug.build.config import QuantConfig
from qtune.onnx_debug.build.facts import facts_of
from qtune.onnx_debug.build.march import Fitted, fitted
from qtune.onnx_debug.build.methods import AUTOMATIC, Method
from qtune.onnx_debug.build.ranges import collect
from qtune.onnx_debug.build.resolve import resolved
from qtune.onnx_debug.build.search import Choice, Search
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.metrics import DEFAULT

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """The calibrated model, and how it came about. ``corrected``: nodes with a new bias."""

    proto: onnx.ModelProto
    fit: Fitted
    choice: Choice
    corrected: Sequence[str]


def fit_to(
    proto: onnx.ModelProto, config: QuantConfig, march: March, source: onnx.ModelProto
) -> Fitted:
    """Where calibration nodes go, for the march; what stays float or falls back is logged."""
    facts = facts_of(proto)
    fit = fitted(proto, facts, resolved(config, proto, facts, source), march)
    for name, reason in fit.placement.floats.items():
        _log.info("%s (%s) stays float: %s", name, facts[name].op_type, reason)
    for name, reason in fit.lowered.items():
        _log.warning("%s (%s) gets int8, not int16: %s", name, facts[name].op_type, reason)
    return fit


def calibrated(
    proto: onnx.ModelProto, fit: Fitted, data: CalibrationDataSet, config: QuantConfig
) -> Calibrated:
    """The optimized model ``proto`` with calibration nodes whose thresholds come from ``data``."""
    methods = config.methods or AUTOMATIC
    stats = collect(proto, data, fit.placement.places, methods)
    choice = _chosen(proto, fit, stats, data, config, methods)
    made = with_ranges(proto, fit, choice.ranges).proto
    done: Sequence[str] = ()
    if config.bias_correction is not None:
        made, done = corrected(made, data, config.bias_correction)
    return Calibrated(made, fit, choice, done)


def _chosen(
    proto: onnx.ModelProto,
    fit: Fitted,
    stats: Any,
    data: CalibrationDataSet,
    config: QuantConfig,
    methods: Sequence[Method],
) -> Choice:
    metric = config.layerwise_search or config.modelwise_search or DEFAULT
    if len(methods) == 1 or not stats.tops:
        ranges = stats.ranges(methods[0])
        _log.info("calibration: %s", methods[0].label)
        return Choice(ranges, dict.fromkeys(ranges, methods[0]))
    search = Search(proto, fit, stats, data)
    if config.layerwise_search is not None:
        return search.of_layers(methods, metric)
    return search.of_model(methods, metric)


def converted(proto: onnx.ModelProto, march: March) -> tuple[HbirModule, HbirModule]:
    """The calibrated model as an HBIR module, and the integers of the march."""
    qat = import_onnx(proto)
    return qat, convert(qat, march)


def quant_info(made: Calibrated, march: March, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """What ``quant_info.json`` holds: march, methods and losses, what stays float and why."""
    choice, fit = made.choice, made.fit
    names = {name: method.label for name, method in choice.methods.items()}
    distinct = sorted(set(names.values()))
    return {
        "march": march.value,
        "calibration": {
            "chosen_by": choice.level,
            "metric": choice.metric,
            "losses": dict(choice.losses),
            "method": distinct[0] if len(distinct) == 1 else names,
        },
        "bias_corrected": list(made.corrected),
        "stays_float": dict(fit.placement.floats),
        "int16_refused": dict(fit.lowered),
        "int16": sorted({place.tensor for place in fit.placement.places if place.bits == 16}),
        "outputs": dict(outputs),
    }
