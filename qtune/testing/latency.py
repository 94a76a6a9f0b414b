"""``assert_latency_below``: the static estimate of a converted or compiled model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtune.bpu.estimate import estimate
from qtune.bpu.hbm import Program
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.testing.arguments import OnnxPath, check_limit
from qtune.testing.limits import shortest
from qtune.testing.onnx_model import as_model, stage_error
from qtune.testing.origin import Origin, origin_of
from qtune.testing.record import conclude_all
from qtune.testing.result import WORST_LAYERS, AssertionResult, LayerResult

_CHECK = "assert_latency_below"
_ADVICE = (
    "Make the longest operators smaller, or keep them int8: each int16 operand doubles the "
    "multiply-adds of a GEMM."
)


def assert_latency_below(
    model: HbirModule | Program | OnnxPath, *, max_us: float, name: str | None = None
) -> AssertionResult:
    """Assert that the static estimate of a model's time is at most ``max_us`` microseconds.

    ``model``: a converted module (estimated as ``compile`` does by default, for the march it was
    converted for) or a compiled program (its own estimate; every function of it has to be below),
    or the path of either.
    The estimate is a roofline, made without running anything (docs/compiler.md): it ranks
    operators and variants of a model, it is no measurement. Raises ``ArgumentError`` for a model
    that is not converted yet.
    """
    __tracebackhide__ = True
    bound = check_limit(_CHECK, "max_us", max_us)
    if bound <= 0:
        raise ArgumentError(
            f"{_CHECK}: max_us can't be met: a time is above 0 us but got {shortest(bound)}"
        )
    opened: Any = as_model(_CHECK, "model", model)
    found = _estimates(opened)
    origin = _origin(opened, name)
    results = [
        _result(function if len(found) > 1 else "", cost, bound, origin)
        for function, cost in found.items()
    ]
    return conclude_all(results)


def _estimates(model: Any) -> dict[str, Mapping[str, Any]]:
    """The estimate of every function, as plain values."""
    if isinstance(model, Program):
        return {function.name: function.estimate for function in model.functions}
    if not isinstance(model, HbirModule):
        expected = (
            "a converted module or a compiled program, such as stages.quantized_bc or stages.hbm"
        )
        raise stage_error(_CHECK, "", model, expected)
    march = model.march
    if model.stage != "quantized" or march is None:
        raise ArgumentError(
            f"{_CHECK}: this module is of the stage {model.stage!r}; the estimate is made of "
            "integer operators, so convert it for a march first (stages.quantized_bc)"
        )
    return {model[0].name: estimate(model.model, march).to_dict()}


def _origin(model: HbirModule | Program, name: str | None) -> Origin:
    """A program that no ``Stages`` made is named after its file."""
    origin = origin_of(model, name)
    if name is None and isinstance(model, Program) and not origin.provenance:
        return Origin(model.path.stem, str(model.path))
    return origin


def _result(
    function: str, cost: Mapping[str, Any], bound: float, origin: Origin
) -> AssertionResult:
    latency = float(cost["latency_us"])
    ok = latency <= bound
    layers = origin.located([_layer(item) for item in cost["operators"]])
    march = cost["march"]
    return AssertionResult(
        check="latency_below",
        model=origin.model,
        ok=ok,
        where=function,
        got=f"{latency:.4g} us (static estimate)",
        limit=f"<= {shortest(bound)} us",
        metrics={"latency_us": latency},
        limits={"latency_us": bound},
        layers=layers,
        measured="estimated microseconds",
        table="" if ok else f"{_head(march, layers)}\n{_longest(cost['operators'], layers)}",
        advice="" if ok else _ADVICE,
        artefact=origin.artefact,
        provenance=origin.provenance,
    )


def _layer(item: Mapping[str, Any]) -> LayerResult:
    """One operator; none is bad by itself."""
    time = float(item["latency_us"])
    return LayerResult(str(item["op"]), time, True, time)


def _head(march: str, layers: Sequence[LayerResult]) -> str:
    return (
        f"a static estimate for {march}, not a measurement; the longest of {len(layers)} operators:"
    )


def _longest(costs: Sequence[Mapping[str, Any]], layers: Sequence[LayerResult]) -> str:
    """The worst five with their share of the time and what bounds them."""
    ranked = sorted(zip(costs, layers, strict=True), key=lambda pair: -pair[0]["latency_us"])
    lines = []
    for item, layer in ranked[:WORST_LAYERS]:
        place = f" ({layer.source})" if layer.source else ""
        lines.append(
            f"  {layer.name}{place}: {layer.value:.4g} us, {item['share']:.1%}, {item['type']}, "
            f"bound by {item['bound']}"
        )
    return "\n".join(lines)
