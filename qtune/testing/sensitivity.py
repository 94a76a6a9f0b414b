"""``assert_sensitivity_below``: no single fake-quantize costs more than a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from qtune.analysis.ablation import all_ports
from qtune.analysis.sensitivity import sensitivity_tables
from qtune.capture.inputs import Inputs, as_example_list, naming
from qtune.errors import ArgumentError
from qtune.nn.prepared import PreparedModel
from qtune.profiler.metric import MetricInfo
from qtune.testing.arguments import (
    OnnxCalibrated,
    check_calibrated,
    check_prepared,
)
from qtune.testing.clipping import clipping
from qtune.testing.limits import Limit, reachable
from qtune.testing.model_ports import scale_of
from qtune.testing.onnx_model import OnnxModel, as_model
from qtune.testing.onnx_sensitivity import onnx_metric, onnx_scores, torch_metric
from qtune.testing.origin import origin_of
from qtune.testing.port_advice import port_advice
from qtune.testing.record import conclude
from qtune.testing.result import PORTS, AssertionResult, LayerResult

_CHECK = "assert_sensitivity_below"
OWN = "own"


def assert_sensitivity_below(
    model: nn.Module | OnnxCalibrated,
    inputs: Any,
    *,
    metric: str | MetricInfo = "ATOL",
    limit: float,
    output: str | None = None,
    name: str | None = None,
) -> AssertionResult:
    """Assert that quantizing any one port alone moves the outputs by at most ``limit``.

    The baseline is the same model with every fake-quantize off; the score of a port is ``metric``
    with only this port quantized, at its own dtype and scale. For metrics where larger is better
    (COSINE, SQNR) every score must be at least ``limit``. ``output`` restricts to one output name;
    default is the worst over all outputs. ``inputs``: a tensor, a tuple of arguments or
    ``qtune.Inputs``, or a list of these, of which the worst counts.

    Of a calibrated ONNX model each calibration node is a port, scored as the debugger does
    (``qtune.onnx_debug.get_sensitivity_of_nodes``): of several outputs the worst, over the items
    the mean. There ``metric`` may also be cosine-similarity, mse, mre, sqnr or chebyshev.
    """
    __tracebackhide__ = True
    model = as_model(_CHECK, "model", model)
    if isinstance(model, OnnxModel):
        check_calibrated(_CHECK, model)
        own = onnx_metric(_CHECK, metric)
        chosen = own.info
        bound = _bound(chosen, limit)
        layers, advice = onnx_scores(_CHECK, model, inputs, own, bound, output)
        top = max(layers, key=lambda layer: layer.badness)
    else:
        prepared = check_prepared(_CHECK, model)
        chosen = torch_metric(_CHECK, metric)
        bound = _bound(chosen, limit)
        worst = _worst_scores(prepared, inputs, chosen, output)
        if not worst:
            raise ArgumentError(f"{_CHECK}: the model has no fake-quantize to judge")
        layers = _layers(prepared, worst, bound, inputs)
        top = max(layers, key=lambda layer: layer.badness)
        item = worst[top.name][2]
        advice = "" if top.ok else port_advice(prepared, top.name, bound, item, output)
    origin = origin_of(model, name)
    return conclude(
        AssertionResult(
            check="sensitivity_below",
            model=origin.model,
            ok=all(layer.ok for layer in layers),
            where=top.name,
            got=bound.shown(top.value),
            limit=str(bound),
            metrics={f"sensitivity_{chosen.name.lower()}": top.value},
            limits={chosen.name: bound.bound},
            layers=origin.located(layers),
            measured=f"{chosen.name} with only this port quantized",
            parts=PORTS,
            advice="" if top.ok else advice,
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _bound(metric: MetricInfo, limit: float) -> Limit:
    name, ascending = metric.name, metric.ascending
    return Limit(name, metric, reachable(_CHECK, "limit", limit, metric=name, ascending=ascending))


def _worst_scores(
    model: PreparedModel, inputs: Any, metric: MetricInfo, output: str | None
) -> dict[str, tuple[float | None, str, Inputs]]:
    """Worst score, dtype and the item that gave it by port, over all items and outputs."""
    names = None if output is None else (output,)
    worst: dict[str, tuple[float | None, str, Inputs]] = {}
    for index, item in enumerate(as_example_list(inputs, "inputs", ArgumentError)):
        with naming(f"batch {index} of inputs", item):
            tables = sensitivity_tables(
                model, item, metric, str(index), output_names=names, variants=(OWN,)
            )
        for row in (row for table in tables.values() for row in table.records()):
            key, value = f"{row['op_name']} {row['fake_stub_type']}", row[f"{OWN}_{metric.name}"]
            if key not in worst or metric.badness(value) > metric.badness(worst[key][0]):
                worst[key] = (value, row["dtype"], item)
    return worst


def _layers(
    model: PreparedModel,
    worst: Mapping[str, tuple[float | None, str, Inputs]],
    limit: Limit,
    inputs: Any,
) -> list[LayerResult]:
    """Every port with what its values look like on all inputs, in order of execution."""
    ports = {port.name: port for port in all_ports(model)}
    tallies = clipping(
        model, list(ports.values()), as_example_list(inputs, "inputs", ArgumentError)
    )
    layers = []
    for name in (name for name in ports if name in worst):
        value, dtype, _ = worst[name]
        tally, scale = tallies[name], scale_of(ports[name].fake_quantize)
        badness, ok = limit.metric.badness(value), limit.holds(value)
        layers.append(
            LayerResult(name, value, ok, badness, tally.shape, dtype, scale, saturated=tally.share)
        )
    return layers
