"""The steps of a build in order: optimize, place, observe, choose, insert, correct, convert."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from qtune.bpu.convert import convert
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx
from qtune.march import March
from qtune.onnx_debug.build.bias import corrected
from qtune.onnx_debug.build.calibrate import with_ranges
from qtune.onnx_debug.build.config import QuantConfig
from qtune.onnx_debug.build.config_activation import WHERE
from qtune.onnx_debug.build.decompose_fit import fitted_in_parts
from qtune.onnx_debug.build.facts import NodeFacts
from qtune.onnx_debug.build.fixed import fixed_thresholds, refuse_changes
from qtune.onnx_debug.build.kept import Kept
from qtune.onnx_debug.build.march import Fitted
from qtune.onnx_debug.build.methods import AUTOMATIC, Method
from qtune.onnx_debug.build.place import Wishes
from qtune.onnx_debug.build.ranges import NotFiniteError, collect
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
    proto: onnx.ModelProto,
    config: QuantConfig,
    march: March,
    source: onnx.ModelProto,
    kept: Kept,
    whole: Mapping[str, str],
) -> Fitted:
    """Where calibration nodes go, for the march; what stays float or falls back is logged.

    ``kept``: the grids that were taken out of the file to make ``proto``. ``whole``: composed
    operators that are not taken apart, and why.
    """
    if config.loads:
        if not kept.grids:
            raise ArgumentError(
                f"{WHERE}: calibration_type: load takes the grids that the model has; it has none"
            )
        kept = replace(kept, is_all=True)

    def asked(facts: Mapping[str, NodeFacts]) -> Wishes:
        wishes = resolved(config, proto, facts, source)
        own = {name: bits for name, bits in wishes.bits.items() if name not in kept.stand_ins}
        return replace(wishes, bits=own)

    fit = fitted_in_parts(proto, asked, march, kept, config.nodes, whole)
    refuse_changes(config.nodes, fit, kept)
    fit = replace(fit, fixed=fixed_thresholds(config.nodes, fit))
    op_types = {node.name: node.op_type for node in fit.proto.graph.node}
    for grid in kept.lost.values():
        text = "%s: the file's grid has no form here and is left out: %s"
        _log.warning(text, grid.source, grid.reason)
    for name, reason in fit.placement.floats.items():
        _log.info("%s (%s) stays float: %s", name, op_types[name], reason)
    for name, reason in fit.lowered.items():
        _log.warning("%s (%s) gets int8, not int16: %s", name, op_types[name], reason)
    return fit


def calibrated_for(
    proto: onnx.ModelProto,
    config: QuantConfig,
    march: March,
    source: onnx.ModelProto,
    kept: Kept,
    data: CalibrationDataSet,
) -> Calibrated:
    """The optimized model ``proto`` with calibration nodes for the march, by ``data``.

    A composed operator of which a part becomes infinite on the data (1 / 0) stays whole.
    """
    whole: dict[str, str] = {}
    while True:
        fit = fit_to(proto, config, march, source, kept, whole)
        try:
            return calibrated(fit, data, config)
        except NotFiniteError as error:
            part = fit.part_that_makes(error.tensor)
            if part is None or fit.parts[part].origin in whole:
                raise
            reason = f"its part {part} becomes NaN or infinite on the calibration data"
            whole[fit.parts[part].origin] = reason


def calibrated(fit: Fitted, data: CalibrationDataSet, config: QuantConfig) -> Calibrated:
    """The model of ``fit`` with calibration nodes whose thresholds come from ``data``."""
    proto = fit.proto
    methods = config.methods or AUTOMATIC
    places = [place for place in fit.placement.places if place.root not in fit.fixed]
    stats = collect(fit.kept.joined(proto), data, places, methods)
    choice = _chosen(proto, fit, stats, data, config, methods)
    made = with_ranges(proto, fit, choice.ranges).proto
    done: Sequence[str] = ()
    if config.bias_correction is not None:
        made, done = corrected(made, data, config.bias_correction, fit.kept.grids)
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
    if not stats.tops:
        return Choice({}, {}, level="file" if fit.kept.grids and not fit.fixed else "given")
    if len(methods) == 1:
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
        "kept": sorted({grid.source for grid in fit.kept.grids.values()}),
        "kept_without_form": {grid.source: grid.reason for grid in fit.kept.lost.values()},
        "fixed_thresholds": dict(fit.fixed),
        "bias_corrected": list(made.corrected),
        "stays_float": dict(fit.placement.floats),
        "int16_refused": dict(fit.lowered),
        "int16": sorted({place.tensor for place in fit.placement.places if place.bits == 16}),
        "parts": _parts(fit),
        "outputs": dict(outputs),
    }


def _parts(fit: Fitted) -> dict[str, list[str]]:
    """Operator of the optimized model -> the nodes of the calibrated one that compute it."""
    found: dict[str, list[str]] = {}
    for name, part in fit.parts.items():
        if not part.is_written:
            found.setdefault(part.origin, []).append(name)
    return found
