"""``assert_sensitivity_below``: no single fake-quantize costs more than a limit."""

from __future__ import annotations

from typing import Any

from torch import nn

from qtune.analysis.sensitivity import sensitivity_tables
from qtune.capture.inputs import as_inputs
from qtune.errors import ArgumentError
from qtune.profiler.metric import Metric, MetricInfo
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult, LayerResult
from qtune.testing.running import model_name

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
    default is the worst over all outputs.
    """
    chosen = Metric.get_metric(metric)
    names = None if output is None else (output,)
    tables = sensitivity_tables(
        model, as_inputs(inputs), chosen, "0", output_names=names, variants=(OWN,), silent=True
    )
    if not tables:
        raise ArgumentError("assert_sensitivity_below: the model has no fake-quantize to judge")
    worst: dict[str, tuple[float | None, str]] = {}
    for table in tables.values():
        for row in table.records():
            key, value = f"{row['op_name']} {row['fake_stub_type']}", row[f"{OWN}_{chosen.name}"]
            if key not in worst or chosen.badness(value) > chosen.badness(worst[key][0]):
                worst[key] = (value, row["dtype"])
    layers = [_layer(key, value, dtype, chosen, limit) for key, (value, dtype) in worst.items()]
    top = max(layers, key=lambda layer: layer.badness)
    sign = ">=" if chosen.ascending else "<="
    return conclude(
        AssertionResult(
            check="sensitivity_below",
            model=model_name(model, name),
            ok=all(layer.ok for layer in layers),
            where=top.name,
            got=f"{chosen.name} {top.value:.5g}" if top.value is not None else "n/a",
            limit=f"{sign} {limit:g}",
            metrics={f"sensitivity_{chosen.name.lower()}": top.value},
            limits={chosen.name: limit},
            layers=layers,
            measured=f"{chosen.name} with only this port quantized",
            advice="" if top.ok else f"Raise {top.name} to qint16, or narrow its range.",
        )
    )


def _layer(
    key: str, value: float | None, dtype: str, metric: MetricInfo, limit: float
) -> LayerResult:
    if value is None:
        return LayerResult(key, None, True, metric.badness(None), dtype=dtype)
    ok = value >= limit if metric.ascending else value <= limit
    return LayerResult(key, value, ok, metric.badness(value), dtype=dtype)
