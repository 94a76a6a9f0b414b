"""``assert_scale_in``: every scale is a sound number within bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qtune.analysis.ablation import Port, all_ports
from qtune.arith.quantize import SMALLEST_SCALE
from qtune.dtype import ALL_DTYPES
from qtune.errors import ArgumentError
from qtune.hbir.attributes import node_attributes
from qtune.hbir.builder import META_DTYPE, META_OP, META_RESULT, META_SCALE
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import Model
from qtune.testing.arguments import OnnxCalibrated, check_calibrated, check_limit
from qtune.testing.limits import telling
from qtune.testing.names import Port as NamedPort
from qtune.testing.names import by_port
from qtune.testing.onnx_model import OnnxModel, as_model, stage_error
from qtune.testing.onnx_ports import by_calibration, dtype_of, users_of
from qtune.testing.origin import origin_of
from qtune.testing.record import conclude
from qtune.testing.result import PORTS, AssertionResult, LayerResult

_CHECK = "assert_scale_in"
_FAKE_QUANT = "FakeQuant"
_DIGITS = 7  # of a float32
_SMALLEST = float(SMALLEST_SCALE)
_ADVICE = (
    "Look at the data that calibration saw there: a constant, an empty or a huge input gives such "
    "a scale; calibrate again, or fix the scale (threshold)."
)

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Scales:
    """The scales of one port, one per channel; none before it was calibrated.

    ``kind`` is empty for a calibration node of an ONNX model, which ``users`` read.
    """

    op: str
    kind: str
    dtype: str
    values: tuple[float, ...]
    users: str = ""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The worst scale of a port: its channel, the bound that it breaks (or the nearer one)."""

    value: float
    channel: int
    badness: float
    limit: str
    bounds: Range

    def holds(self, value: float) -> bool:
        """Whether a scale is within the bounds."""
        return self.bounds[0] <= value <= self.bounds[1]


def assert_scale_in(
    model: Model | OnnxCalibrated,
    *,
    low: float | None = None,
    high: float | None = None,
    ranges: Mapping[str, tuple[float | None, float | None]] | None = None,
    name: str | None = None,
) -> AssertionResult:
    """Assert that every scale lies from ``low`` to ``high``; 0, NaN and infinities never do.

    ``model``: a prepared model (every port, weights per channel), a fake-quant HBIR module (the
    same), a calibrated ONNX model (every calibration node) or an integer module (but for weights,
    whose scales are part of its requantize factors).
    ``low`` defaults to 2**-40, the smallest scale that calibration gives (numerics.md section 1),
    ``high`` to no bound. ``ranges``: port -> ``(low, high)`` in place of these, where ``None``
    is the default; names as for ``assert_qconfig``, without a kind every port of the operator.
    A port that was never calibrated fails. Metrics ``min_scale``, ``max_scale``, ``bad_scales``.
    """
    __tracebackhide__ = True
    general = _range("", low, high)
    model = as_model(_CHECK, "model", model)
    found = list(_scales(model))
    if not found:
        raise ArgumentError(f"{_CHECK}: the model has no scale")
    named = _named(model, ranges or {}, found)
    bounds = {key: _pair(f"ranges: {' '.join(key)}: ", value) for key, value in named.items()}
    verdicts = [_judge(item, bounds.get((item.op, item.kind), general)) for item in found]
    layers = [_layer(item, verdict) for item, verdict in zip(found, verdicts, strict=True)]
    index = max(range(len(layers)), key=lambda i: layers[i].badness)
    values = [value for item in found for value in item.values]
    ok, origin = all(layer.ok for layer in layers), origin_of(model, name)
    return conclude(
        AssertionResult(
            check="scale_in",
            model=origin.model,
            ok=ok,
            where=layers[index].name,
            got=_got(found[index], verdicts[index]),
            limit=verdicts[index].limit,
            metrics={
                "min_scale": min(values, key=_nan_first, default=None),
                "max_scale": max(values, key=_nan_last, default=None),
                "bad_scales": sum(not layer.ok for layer in layers),
            },
            limits={
                key: bound
                for key, bound in zip(("min_scale", "max_scale"), general, strict=True)
                if bound < math.inf
            },
            layers=origin.located(layers),
            measured="worst scale of each port",
            parts=PORTS,
            advice="" if ok else _ADVICE,
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _named(model: Any, ranges: Mapping[str, Any], found: Sequence[_Scales]) -> dict[NamedPort, Any]:
    """What ``ranges`` says about each port that it names."""
    if isinstance(model, OnnxModel):
        chosen = by_calibration(_CHECK, "ranges", ranges, model.calibrated)
        return {(name, ""): value for name, value in chosen.items()}
    return by_port(_CHECK, "ranges", ranges, [(item.op, item.kind) for item in found])


def _nan_first(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _pair(where: str, given: Any) -> Range:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ArgumentError(f"{_CHECK}: {where}expected (low, high) but got {given!r}")
    return _range(where, *given)


def _range(where: str, low: Any, high: Any) -> Range:
    least = _SMALLEST if low is None else check_limit(_CHECK, f"{where}low", low)
    most = math.inf if high is None else check_limit(_CHECK, f"{where}high", high)
    if not 0 < least <= most:
        raise ArgumentError(
            f"{_CHECK}: {where}expected 0 < low <= high but got {least:g} and {most:g}"
        )
    return least, most


def _judge(item: _Scales, bounds: Range) -> _Verdict:
    if not item.values:
        return _Verdict(math.nan, 0, math.inf, "calibrated", bounds)
    every = [_one(value, channel, bounds) for channel, value in enumerate(item.values)]
    return max(every, key=lambda verdict: verdict.badness)


def _one(value: float, channel: int, bounds: Range) -> _Verdict:
    """How far beyond its bounds a scale is, in powers of two; not above 0: within them."""
    low, high = bounds
    if not (0 < value < math.inf):
        limit = "a positive number" if high == math.inf or value <= 0 else f"<= {_short(high)}"
        return _Verdict(value, channel, math.inf, limit, bounds)
    below, above = math.log2(low / value), math.log2(value / high) if high < math.inf else -math.inf
    if below >= above:
        return _Verdict(value, channel, below, f">= {_short(low)}", bounds)
    return _Verdict(value, channel, above, f"<= {_short(high)}", bounds)


def _short(bound: float) -> str:
    return "2**-40" if bound == _SMALLEST else f"{bound:.{_DIGITS}g}"


def _layer(item: _Scales, verdict: _Verdict) -> LayerResult:
    ok = verdict.badness <= 0
    found = f"scale {_got(item, verdict)}" + ("" if ok else f", limit {verdict.limit}")
    return LayerResult(
        f"{item.op} {item.kind}".rstrip(),
        verdict.value,
        ok,
        verdict.badness,
        dtype=item.dtype,
        scale=item.values[0] if len(item.values) == 1 else None,
        source=item.users,
        found=found,
    )


def _got(item: _Scales, verdict: _Verdict) -> str:
    if not item.values:
        return "no scale yet"
    channel = f" (channel {verdict.channel} of {len(item.values)})" if len(item.values) > 1 else ""
    return f"{telling(verdict.value, verdict.holds, _DIGITS)}{channel}"


def _scales(model: Any) -> Iterator[_Scales]:
    """Every port with a scale, in order of execution."""
    if isinstance(model, PreparedModel):
        for port in all_ports(model):
            if isinstance(port, Port):
                quantizer = port.fake_quantize
                known = quantizer.scale.detach().tolist() if bool(quantizer.observed) else []
                yield _Scales(port.op.name, port.kind, str(quantizer.dtype), tuple(known))
    elif isinstance(model, OnnxModel):
        for held in check_calibrated(_CHECK, model).calibrated.calibrations.values():
            values = tuple(held.scales.reshape(-1).tolist())
            yield _Scales(held.name, "", dtype_of(held), values, users_of(held))
    elif isinstance(model, HbirModule):
        for node in model.model.graph:
            yield from _of_node(node)
    else:
        raise stage_error(
            _CHECK,
            "",
            model,
            "a model made by prepare or an HBIR module, such as stages.calib or stages.qat_bc, or "
            "a calibrated ONNX model",
        )


def _of_node(node: ir.Node) -> Iterator[_Scales]:
    """The scale of the result or of an operand that is quantized anew, and those of constants."""
    op, result = node.metadata_props.get(META_OP, ""), node.outputs[0]
    facts = result.metadata_props
    use = next(iter(result.uses()), None)
    operand = f"input-{use.idx if use else 0}"
    if META_SCALE in facts:
        kind = "output" if META_RESULT in node.metadata_props else operand
        yield _Scales(op, kind, facts.get(META_DTYPE, ""), (float(facts[META_SCALE]),))
        return
    source = node.inputs[0] if node.op_type.startswith(_FAKE_QUANT) else None
    constant = node.inputs[1].const_value if source is not None and node.inputs[1] else None
    if source is not None and constant is not None:
        kind = "weight" if source.const_value is not None else operand
        qmin = node_attributes(node).get("qmin")
        dtype = next((str(dtype) for dtype in ALL_DTYPES if dtype.qmin == qmin), "")
        yield _Scales(op, kind, dtype, tuple(constant.numpy().reshape(-1).tolist()))
