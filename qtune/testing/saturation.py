"""``assert_no_saturation``: the ranges hold what comes to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qtune.analysis.ablation import AnyPort, Port, all_ports
from qtune.capture.inputs import as_example_list
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import Model
from qtune.testing.arguments import OnnxCalibrated, check_calibrated, check_limit
from qtune.testing.clipping import Tally, clipping
from qtune.testing.codes import code_shares
from qtune.testing.limits import shortest, telling
from qtune.testing.model_ports import scale_of
from qtune.testing.names import patterns_of, ports_of
from qtune.testing.onnx_clipping import onnx_clipping, reach_text
from qtune.testing.onnx_model import OnnxModel, as_model, stage_error
from qtune.testing.onnx_ports import by_calibration, dtype_of, users_of
from qtune.testing.origin import Origin, origin_of
from qtune.testing.record import conclude
from qtune.testing.result import LAYERS, PORTS, AssertionResult, LayerResult
from qtune.testing.running import chunks, debug_data, observations

_CHECK = "assert_no_saturation"
_OUTPUT = "output"
_CODES = (
    "A code at the end of the grid may be a value that just reaches it: stages.calib instead "
    "counts the real values beyond it."
)


def assert_no_saturation(
    model: Model | OnnxCalibrated,
    *,
    inputs: Any,
    max_share: float,
    names: str | Iterable[str] = "",
    name: str | None = None,
) -> AssertionResult:
    """Assert that of what comes to any port at most the share ``max_share`` (0 to 1) is clipped.

    Of a prepared model: the real values that the float model has on ``inputs`` and that lie
    outside of the port's ``qmin`` to ``qmax`` by half a step or more (``in_range``, numerics.md
    section 1; infinite in float16); NaN counts as well. Of a calibrated ONNX model the same, at
    each calibration node. Of an HBIR module only the codes are known:
    those at ``qmin`` and ``qmax`` count, so a minimum and a maximum that just fit count too, and
    what keeps its input's scale (``pool``) counts again. ``names``: which ports (``"head
    output"``), operators, modules around them or globs; all by default. ``inputs`` as for
    ``assert_consistency``. Metric ``saturated``: the worst share.
    """
    __tracebackhide__ = True
    bound = check_limit(_CHECK, "max_share", max_share)
    if not 0 <= bound <= 1:
        raise ArgumentError(f"{_CHECK}: max_share is a share from 0 to 1 but got {max_share!r}")
    patterns = patterns_of(_CHECK, "names", names)
    model = as_model(_CHECK, "model", model)
    origin = origin_of(model, name)
    if isinstance(model, OnnxModel):
        check_calibrated(_CHECK, model)
        layers, advice, parts = *_of_calibrations(model, inputs, patterns, bound), PORTS
    elif isinstance(model, PreparedModel):
        layers, advice, parts = *_of_ports(model, inputs, patterns, bound), PORTS
    elif isinstance(model, HbirModule):
        layers, advice, parts = _of_codes(model, inputs, patterns, bound), _CODES, LAYERS
    else:
        raise stage_error(
            _CHECK,
            "",
            model,
            "a model made by prepare or an HBIR module, such as stages.calib or "
            "stages.quantized_bc, or a calibrated ONNX model",
        )
    return _conclude(layers, bound, parts, advice, origin)


def _conclude(
    layers: Sequence[LayerResult], bound: float, parts: str, advice: str, origin: Origin
) -> AssertionResult:
    __tracebackhide__ = True
    worst = max(layers, key=lambda layer: layer.badness)
    return conclude(
        AssertionResult(
            check="no_saturation",
            model=origin.model,
            ok=worst.ok,
            where=worst.name,
            got=f"{telling(100 * worst.badness, lambda p: p <= 100 * bound)}% saturated",
            limit=f"<= {shortest(round(100 * bound, 10))}%",
            metrics={"saturated": worst.value},
            limits={"saturated": bound},
            layers=origin.located(layers),
            measured="share that is clipped" if parts == PORTS else "share of codes at the ends",
            parts=parts,
            advice="" if worst.ok else advice,
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _of_ports(
    model: PreparedModel, inputs: Any, patterns: Sequence[str], bound: float
) -> tuple[list[LayerResult], str]:
    """Every chosen port, and what to do about the worst."""
    ports = all_ports(model)
    missing = [p.name for p in ports if isinstance(p, Port) and not p.fake_quantize.observed]
    if missing:
        raise ArgumentError(f"{_CHECK}: {missing[0]} has no scale yet: calibrate the model first")
    wanted = _chosen([(port.op.name, port.kind) for port in ports], patterns)
    chosen = [port for port in ports if (port.op.name, port.kind) in wanted]
    items = as_example_list(inputs, "inputs", ArgumentError)
    tallies = clipping(model, chosen, items)
    layers = []
    for port in chosen:
        tally, grid = tallies[port.name], port.fake_quantize
        shape, found = tally.shape, f"{tally} clipped"
        facts = shape, str(grid.dtype), scale_of(grid), found
        layers.append(_layer(port.name, tally.share, bound, *facts))
    return layers, _advice(chosen, tallies)


def _advice(ports: Sequence[AnyPort], tallies: Mapping[str, Tally]) -> str:
    """What to do about the port that clips most."""
    worst = max(ports, key=lambda port: tallies[port.name].share)
    scale, reach = scale_of(worst.fake_quantize), ""
    if isinstance(worst, Port) and scale is not None:
        covered = scale * worst.fake_quantize.dtype.qmax
        most = tallies[worst.name].reach
        reach = f"{worst.name} covers {covered:.4g}, these inputs reach {most:.4g}. "
    return f"{reach}Calibrate with data like these, or fix a larger range (threshold)."


def _of_calibrations(
    model: OnnxModel, inputs: Any, patterns: Sequence[str], bound: float
) -> tuple[list[LayerResult], str]:
    """Every chosen calibration node, and what to do about the worst."""
    if not patterns:
        raise ArgumentError(f"{_CHECK}: names is empty; leave it out for all ports")
    held = model.calibrated
    names = by_calibration(_CHECK, "names", dict.fromkeys(patterns, True), held)
    chosen = [held.calibrations[name] for name in names]
    tallies = onnx_clipping(held, chosen, debug_data(model, inputs))
    layers = []
    for item in chosen:
        tally = tallies[item.name]
        scale = float(item.scales[0]) if item.axis < 0 else None
        found = f"{tally} clipped"
        layer = _layer(item.name, tally.share, bound, tally.shape, dtype_of(item), scale, found)
        layers.append(replace(layer, source=users_of(item)))
    worst = max(chosen, key=lambda item: tallies[item.name].share)
    return layers, (
        f"{reach_text(worst, tallies[worst.name])}. Calibrate with data like these, or choose a "
        "calibration_type that covers more (max)."
    )


def _of_codes(
    module: HbirModule, inputs: Any, patterns: Sequence[str], bound: float
) -> list[LayerResult]:
    """Every chosen operator whose result has a scale."""
    parts = chunks((module,), inputs)
    first: dict[str, tuple[tuple[int, ...], str, float | None]] = {}
    tallies: dict[str, Tally] = {}
    for part, run in zip(parts, observations(module, parts), strict=True):
        for record in run.records.values():
            value = part.trim(record.value)
            _, share = code_shares(value, value, record.scale, record.dtype)
            if share is not None:
                shape = tuple(value.shape)
                first.setdefault(record.name, (shape, record.dtype, record.scale))
                tally, count = tallies.setdefault(record.name, Tally()), value.numel()
                tally.add(shape, round(share * count), count)
    return [
        _layer(op, tallies[op].share, bound, *first[op], f"{tallies[op]} at the ends")
        for op in _results(module, list(first), patterns)
    ]


def _results(module: HbirModule, ops: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The chosen ones of ``ops``; what joins a fused group has the group's result."""
    owner = {name: group for name, group in module[0].groups().items() if group in ops}
    owner |= {op: op for op in ops}
    chosen = {owner[name] for name, _ in _chosen([(name, _OUTPUT) for name in owner], patterns)}
    return [op for op in ops if op in chosen]


def _chosen(ports: Sequence[tuple[str, str]], patterns: Sequence[str]) -> set[tuple[str, str]]:
    if not ports:
        raise ArgumentError(f"{_CHECK}: no operator of the model has a scale")
    if not patterns:
        raise ArgumentError(f"{_CHECK}: names is empty; leave it out for all ports")
    return {port for pattern in patterns for port in ports_of(_CHECK, "names", pattern, ports)}


def _layer(
    name: str,
    share: float,
    bound: float,
    shape: tuple[int, ...] | None,
    dtype: str,
    scale: float | None,
    found: str,
) -> LayerResult:
    return LayerResult(
        name, share, share <= bound, share, shape, dtype, scale, None, share, found=found
    )
