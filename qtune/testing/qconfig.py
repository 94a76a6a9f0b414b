"""``assert_qconfig``: dtypes, fixed scales and high-precision outputs are the ones one wants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from qtune.errors import ArgumentError
from qtune.qconfig.dtypes import port_dtype
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.learned import LearnedFakeQuantize
from qtune.report.words import counted
from qtune.testing.arguments import (
    OnnxCalibrated,
    check_calibrated,
    check_limit,
    check_prepared,
)
from qtune.testing.model_ports import ModelPort, model_ports
from qtune.testing.names import by_port, operators_of, patterns_of
from qtune.testing.onnx_dtypes import high_precision, onnx_dtypes
from qtune.testing.onnx_model import OnnxModel, as_model
from qtune.testing.origin import origin_of
from qtune.testing.record import conclude
from qtune.testing.result import PORTS, AssertionResult, LayerResult

_CHECK = "assert_qconfig"
_OUTPUT = "output"
_FLOAT32_DIGITS = 1e-6  # scales are float32, which has 7 digits
_HIGH = "high precision"
_ADVICE = (
    "Change the rule that decided, or put a template behind it; "
    "qtune.quantization.explain(model) shows who decided what."
)
_ONNX_ADVICE = (
    "Change quant_config: node_config beats op_config, which beats model_config; the log of "
    "build_model says where the march kept a node from int16."
)

Problem = tuple[str, str]
"""What a port has, and what it should have."""


def assert_qconfig(
    model: nn.Module | OnnxCalibrated,
    *,
    dtypes: Mapping[str, Any] | None = None,
    fixed_scales: Mapping[str, float] | None = None,
    high_precision_outputs: Iterable[str] | None = None,
    name: str | None = None,
) -> AssertionResult:
    """Assert that a prepared model is configured as expected, whichever rules brought that about.

    ``dtypes``: port -> dtype (``"qint16"``, ``qtune.dtype.qint16``, ``torch.qint16``,
    ``torch.float32``, ...). ``fixed_scales``: port -> scale, which has to be given and not observed
    or learned, so that no data move it (compared to 6 digits). ``high_precision_outputs``: exactly
    the operators whose result has full precision (``()``: none).

    A port is ``"head output"``, ``"head weight"``, ``"head input"`` (all operands) or ``"head
    input-1"``; without a kind it is the output. The operator may be a module around it, a glob
    (``"stem*"``) or ``""`` for all; a later entry wins. The output of an operator that joins a
    fused group is that of the group. What can have no scale (an index, the result of a
    DeQuantStub) is meant by its exact name only. A name that fits nothing is an ``ArgumentError``.
    The message says which rule decided (as ``qtune.quantization.explain`` does).

    Of a calibrated ONNX model the ports are those of its nodes, as calibration nodes bring them to
    a grid; high precision are outputs that none does. A file does not say which scales were fixed:
    bound them with ``assert_scale_in``.
    """
    __tracebackhide__ = True
    model = as_model(_CHECK, "model", model)
    if not dtypes and not fixed_scales and high_precision_outputs is None:
        raise ArgumentError(
            f"{_CHECK}: give at least one of dtypes, fixed_scales, high_precision_outputs"
        )
    listed, high = _ports_of(model, fixed_scales)
    ports = {(port.op, port.kind): port for port in listed}
    keys, by_name = list(ports), {key for key, port in ports.items() if not port.can_have_grid}
    problems: dict[tuple[str, str], list[Problem]] = {}
    for key, dtype in by_port(_CHECK, "dtypes", dtypes or {}, keys, _OUTPUT, by_name).items():
        problems.setdefault(key, []).extend(_wrong_dtype(ports[key], dtype))
    for key, scale in by_port(_CHECK, "fixed_scales", fixed_scales or {}, keys, _OUTPUT).items():
        problems.setdefault(key, []).extend(_wrong_scale(ports[key], scale))
    if high_precision_outputs is not None:
        for key, found in _precision(high, ports, high_precision_outputs).items():
            problems.setdefault(key, []).extend(found)
    checked = [(port, problems[key]) for key, port in ports.items() if key in problems]
    return _conclude(checked, model, name)


def _ports_of(model: Any, fixed_scales: Any) -> tuple[list[ModelPort], set[str]]:
    """The ports, and the operators whose result has full precision."""
    if not isinstance(model, OnnxModel):
        prepared = check_prepared(_CHECK, model)
        plans = prepared.resolution.plans if prepared.resolution else {}
        return model_ports(prepared), {op for op, plan in plans.items() if plan.high_precision}
    check_calibrated(_CHECK, model)
    if fixed_scales:
        raise ArgumentError(
            f"{_CHECK}: fixed_scales: an ONNX model does not say which scales were fixed; bound "
            "them with assert_scale_in(ranges=...)"
        )
    return onnx_dtypes(model), high_precision(model)


def _conclude(
    checked: list[tuple[ModelPort, list[Problem]]], model: Any, name: str | None
) -> AssertionResult:
    __tracebackhide__ = True
    wrong = [(port, found) for port, found in checked if found]
    right = f"{counted(len(checked), 'port')} as asked"
    got, limit = wrong[0][1][0] if wrong else (right, "0 wrong")
    origin = origin_of(model, name)
    return conclude(
        AssertionResult(
            check="qconfig",
            model=origin.model,
            ok=not wrong,
            where=wrong[0][0].name if wrong else "",
            got=got,
            limit=limit,
            metrics={"wrong_ports": len(wrong), "checked_ports": len(checked)},
            limits={"wrong_ports": 0},
            layers=origin.located([_layer(port, found) for port, found in checked]),
            measured="configured otherwise than asked",
            parts=PORTS,
            advice=_advice(model) if wrong else "",
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _advice(model: Any) -> str:
    return _ONNX_ADVICE if isinstance(model, OnnxModel) else _ADVICE


def _layer(port: ModelPort, problems: list[Problem]) -> LayerResult:
    said = [f"got {got}, expected {wanted}" for got, wanted in problems] or ["as asked"]
    found = "; ".join([*said, port.decided] if port.decided else said)
    bad = bool(problems)
    return LayerResult(
        port.name, None, not bad, float(bad), port.shape, port.dtype, port.scale, found=found
    )


def _wrong_dtype(port: ModelPort, wanted: Any) -> list[Problem]:
    dtype = str(port_dtype(wanted, f"{_CHECK}: dtypes: {port.name}"))
    return [] if port.dtype == dtype else [(port.dtype, dtype)]


def _wrong_scale(port: ModelPort, wanted: Any) -> list[Problem]:
    scale_of_port = f"fixed_scales: {port.name}"
    wanted = check_limit(_CHECK, scale_of_port, wanted)
    if not 0 < wanted < math.inf:
        raise ArgumentError(f"{_CHECK}: {scale_of_port}: a scale is positive, got {wanted:g}")
    limit = f"scale {wanted:.7g}, fixed"
    if not isinstance(port.grid, FakeQuantize):
        return [(f"{port.dtype}, no scale", limit)]
    scale = port.grid.scale.detach()
    distance = (scale.double() - wanted).abs()
    if not bool((distance <= _FLOAT32_DIGITS * wanted).all()):
        return [(f"scale {float(scale[int(distance.argmax())]):.7g}", limit)]
    why = _moved_by(port.grid)
    return [(f"scale moved by {why}", limit)] if why else []


def _moved_by(grid: FakeQuantize) -> str:
    """What changes a scale, empty where nothing does."""
    if isinstance(grid, LearnedFakeQuantize):
        return "training"
    observer = grid.activation_post_process
    given = bool((torch.as_tensor(observer.threshold) > 0).all())
    return "" if grid.is_fixed or given else f"its {type(observer).__name__}"


def _precision(
    precise: set[str], ports: Mapping[tuple[str, str], ModelPort], given: Any
) -> dict[tuple[str, str], list[Problem]]:
    """By port: whether it is one of exactly the high-precision outputs."""
    outputs = {key: port for key, port in ports.items() if key[1] == _OUTPUT}
    high = {key for key in outputs if key[0] in precise}
    names = [op for op, _ in outputs]
    wanted = {
        (op, _OUTPUT)
        for pattern in patterns_of(_CHECK, "high_precision_outputs", given)
        for op in operators_of(_CHECK, "high_precision_outputs", pattern, names)
    }
    lost = {key: [(outputs[key].dtype, _HIGH)] for key in wanted - high}
    more = {key: [(_HIGH, "not in high precision")] for key in high - wanted}
    return {key: [] for key in wanted & high} | lost | more
