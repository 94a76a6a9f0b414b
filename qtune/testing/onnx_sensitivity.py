"""``assert_sensitivity_below`` on calibrated ONNX models: the debugger's sensitivity, bounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.calibrated import CalibratedModel, CalibrationNode
from qtune.onnx_debug.metrics import METRICS, OnnxMetric
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.sensitivity import outputs_of, sensitivities
from qtune.profiler.metric import Metric, MetricInfo
from qtune.testing.clipping import Tally
from qtune.testing.limits import Limit
from qtune.testing.onnx_clipping import Errors, is_clipped, onnx_clipping, reach_text
from qtune.testing.onnx_model import OnnxModel
from qtune.testing.onnx_ports import dtype_of, users_of
from qtune.testing.result import LayerResult
from qtune.testing.running import debug_data

_MOST_USERS = 4
_LONG = "-similarity"  # leaves no room for the name of a node in 80 columns


def onnx_metric(check: str, metric: Any) -> OnnxMetric:
    """A metric by the debugger's name, or one of ours on single tensors."""
    if isinstance(metric, str) and metric in METRICS:
        held = METRICS[metric]
        return replace(held, info=replace(held.info, name=metric.removesuffix(_LONG)))
    try:
        info = Metric.get_metric(metric)
    except ArgumentError as error:
        more = ", ".join(METRICS)
        raise ArgumentError(f"{check}: {error}; for ONNX models also {more}") from None
    if info.scope != "pertensor":
        raise ArgumentError(
            f"{check}: {info.name} compares whole outputs of torch models; for ONNX models take a "
            f"metric on tensors: {', '.join(METRICS)}, ATOL, L1, ..."
        )
    return OnnxMetric(info.name, info, math.inf if info.ascending else 0.0)


def torch_metric(check: str, metric: str | MetricInfo) -> MetricInfo:
    """A metric of ours; one of the debugger's is refused with the name that it has here."""
    try:
        return Metric.get_metric(metric)
    except ArgumentError:
        if not isinstance(metric, str) or metric not in METRICS:
            raise
    raise ArgumentError(
        f"{check}: {metric!r} is a metric of the ONNX debugger, for calibrated ONNX models; for "
        f"this one take {', '.join(held.info.name for held in METRICS.values() if _is_ours(held))}"
    )


def _is_ours(metric: OnnxMetric) -> bool:
    return metric.info.name != metric.name


def onnx_scores(
    check: str, model: OnnxModel, inputs: Any, metric: OnnxMetric, limit: Limit, output: str | None
) -> tuple[list[LayerResult], str]:
    """Every calibration node that can be off, in graph order, and what to do about the worst."""
    held, data = model.calibrated, debug_data(model, inputs)
    items = [item for item in held.calibrations.values() if not item.is_stored]
    if not items:
        raise ArgumentError(f"{check}: the model has no calibration node that can be switched off")
    runner, names = Runner(held, data), [item.name for item in items]
    values = sensitivities(runner, names, [metric], None, _outputs(check, held, output))
    tallies = onnx_clipping(held, items, data)
    layers = []
    for item in items:
        value, tally = values[item.name][metric.name], tallies[item.name]
        layers.append(_layer(item, value, tally, limit))
    worst = max(items, key=lambda item: metric.badness(values[item.name][metric.name]))
    return layers, _advice(worst, tallies[worst.name])


def _outputs(check: str, model: CalibratedModel, output: str | None) -> Sequence[str]:
    known = [port.name for port in model.outputs]
    if output is None or output in known:
        return outputs_of(model, None) if output is None else [output]
    raise ArgumentError(f"{check}: output: the model has no {output!r}; it has {', '.join(known)}")


def _layer(item: CalibrationNode, value: float, tally: Tally, limit: Limit) -> LayerResult:
    return LayerResult(
        item.name,
        value,
        limit.holds(value),
        limit.metric.badness(value),
        tally.shape,
        dtype_of(item),
        float(item.scales[0]) if item.axis < 0 else None,
        saturated=tally.share,
        source=users_of(item),
    )


def _advice(item: CalibrationNode, tally: Errors) -> str:
    """A larger range where values are clipped, more bits where they are rounded."""
    if is_clipped(tally):
        return (
            f"{reach_text(item, tally)}: calibrate with data like these, or choose a "
            "calibration_type that covers more (max)."
        )
    entries = ", ".join(f'"{name}": {{"qtype": "int16"}}' for name in item.users[:_MOST_USERS])
    return (
        f"{item.name} is mostly rounded; more bits help: "
        f'quant_config={{"node_config": {{{entries}}}}}'
    )
