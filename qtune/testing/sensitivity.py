"""``assert_sensitivity_below``: no single fake-quantize costs more than a limit."""

from __future__ import annotations

from typing import Any

from torch import nn

from qtune.analysis.sensitivity import sensitivity_tables
from qtune.capture.inputs import Inputs, as_example_list
from qtune.errors import ArgumentError
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.profiler.metric import Metric, MetricInfo
from qtune.testing.arguments import check_limit, check_prepared
from qtune.testing.limits import Limit
from qtune.testing.origin import origin_of
from qtune.testing.port_advice import port_advice
from qtune.testing.record import conclude
from qtune.testing.result import PORTS, AssertionResult, LayerResult

_CHECK = "assert_sensitivity_below"
OWN = "own"


def assert_sensitivity_below(
    model: nn.Module,
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
    """
    __tracebackhide__ = True
    prepared = check_prepared(_CHECK, model)
    chosen = Metric.get_metric(metric)
    bound = Limit(chosen.name, chosen, check_limit(_CHECK, "limit", limit))
    worst = _worst_scores(prepared, inputs, chosen, output)
    if not worst:
        raise ArgumentError(f"{_CHECK}: the model has no fake-quantize to judge")
    scales = _scales(prepared)
    layers = [
        _layer(port, bound, value, dtype, scales.get(port))
        for port, (value, dtype, _) in worst.items()
    ]
    top = max(layers, key=lambda layer: layer.badness)
    advice = "" if top.ok else port_advice(prepared, top.name, bound, worst[top.name][2], output)
    origin = origin_of(model, name)
    return conclude(
        AssertionResult(
            check="sensitivity_below",
            model=origin.model,
            ok=all(layer.ok for layer in layers),
            where=top.name,
            got=f"{chosen.name} {top.value:.5g}" if top.value is not None else "n/a",
            limit=str(bound),
            metrics={f"sensitivity_{chosen.name.lower()}": top.value},
            limits={chosen.name: bound.bound},
            layers=origin.located(layers),
            measured=f"{chosen.name} with only this port quantized",
            parts=PORTS,
            advice=advice,
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _worst_scores(
    model: PreparedModel, inputs: Any, metric: MetricInfo, output: str | None
) -> dict[str, tuple[float | None, str, Inputs]]:
    """Worst score, dtype and the item that gave it by port, over all items and outputs."""
    names = None if output is None else (output,)
    worst: dict[str, tuple[float | None, str, Inputs]] = {}
    for index, item in enumerate(as_example_list(inputs, "inputs", ArgumentError)):
        tables = sensitivity_tables(
            model, item, metric, str(index), output_names=names, variants=(OWN,)
        )
        for row in (row for table in tables.values() for row in table.records()):
            key, value = f"{row['op_name']} {row['fake_stub_type']}", row[f"{OWN}_{metric.name}"]
            if key not in worst or metric.badness(value) > metric.badness(worst[key][0]):
                worst[key] = (value, row["dtype"], item)
    return worst


def _scales(model: PreparedModel) -> dict[str, float]:
    """The scale of every port that has one for the whole tensor."""
    return {
        f"{op} {kind}": float(quantizer.scale.detach())
        for op, kind, quantizer in iter_stubs(model)
        if quantizer.scale.numel() == 1
    }


def _layer(
    port: str, limit: Limit, value: float | None, dtype: str, scale: float | None
) -> LayerResult:
    badness = limit.metric.badness(value)
    return LayerResult(port, value, limit.holds(value), badness, dtype=dtype, scale=scale)
