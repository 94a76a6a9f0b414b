"""``assert_on_bpu``: no operator falls back to the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qtune.bpu.convert import advice_items, check_conversion
from qtune.check.march import cpu_operators, is_outside
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.march import as_march, get_march
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import Model, operator_name
from qtune.testing.arguments import OnnxCalibrated, check_calibrated
from qtune.testing.names import operators_of, patterns_of
from qtune.testing.onnx_model import OnnxModel, as_model
from qtune.testing.origin import Origin, origin_of
from qtune.testing.record import conclude
from qtune.testing.result import AssertionResult, LayerResult

_CHECK = "assert_on_bpu"
_ADVICE = "Quantize it, replace it by an operator that the march runs, or name it in allowed."


def assert_on_bpu(
    model: Model | OnnxCalibrated, *, allowed: Iterable[str] = (), name: str | None = None
) -> AssertionResult:
    """Assert that no operator of the quantized part falls back to the CPU.

    ``model``: the integer HBIR module (what ``convert`` decided, ``module.report``), the fake-quant
    one (what ``convert`` would decide, for its stages' march or the one set), or a prepared model
    (what stays float), or a calibrated ONNX model (as ``convert`` would decide). Counted are
    operators, as ``check_model`` counts them: not the quantizes and dequantizes at the border, and
    not what lies before the first quantize or behind the last dequantize, which is the user's own
    choice; those are named below the message. Float16 on a march that computes in it runs on the
    BPU. ``allowed``: names, modules around them or globs (:mod:`qtune.testing.names`) of operators
    that may. Metric ``cpu_ops``.
    """
    __tracebackhide__ = True
    model = as_model(_CHECK, "model", model)
    found, names, note = _on_cpu(model)
    may = {
        op
        for pattern in patterns_of(_CHECK, "allowed", allowed)
        for op in operators_of(_CHECK, "allowed", pattern, names)
    }
    origin = origin_of(model, name)
    counted = {op: why for op, why in found.items() if not is_outside(why)}
    bad = [op for op in counted if op not in may]
    lines = {
        "may run on the CPU": [op for op in counted if op in may],
        "outside of the quantized part, not counted": [op for op in found if op not in counted],
    }
    table = [f"{head}: {', '.join(ops)}" for head, ops in lines.items() if ops]
    return conclude(
        AssertionResult(
            check="on_bpu",
            model=origin.model,
            ok=not bad,
            where=bad[0] if bad else "",
            got=f"{len(bad)} on the CPU",
            limit="0",
            metrics={"cpu_ops": len(bad)},
            limits={"cpu_ops": 0},
            layers=_layers(counted, may, origin),
            measured="on the CPU",
            table="\n".join([*table, note] if note else table),
            advice=_ADVICE if bad else "",
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _layers(found: Mapping[str, str], may: set[str], origin: Origin) -> list[LayerResult]:
    return origin.located(
        [
            LayerResult(op, None, op in may, float(op not in may), dtype="torch.float32", found=why)
            for op, why in found.items()
        ]
    )


def _on_cpu(model: Any) -> tuple[dict[str, str], list[str], str]:
    """Operators on the CPU in order of execution, with the reason; all operators; a note."""
    if isinstance(model, PreparedModel):
        names = [operator_name(node) for node in model.graph.nodes if operator_name(node)]
        why = {op.name: op.reason for op in model.float_ops}
        return {name: why[name] for name in names if name in why}, names, ""
    if isinstance(model, OnnxModel):
        model = check_calibrated(_CHECK, model).hbir
    if not isinstance(model, HbirModule):
        raise ArgumentError(
            f"{_CHECK}: expected stages.quantized_bc, another HBIR module, or a model made by "
            f"prepare, but got {type(model).__module__}.{type(model).__qualname__}"
        )
    names = list(dict.fromkeys(op.op for op in model[0].operations if op.op))
    if model.stage == "quantized":
        return cpu_operators(advice_items(model)), names, ""
    made_for = str(origin_of(model).provenance.get("march") or "")
    march = as_march(made_for) if made_for else get_march()
    _, items = check_conversion(model, march)
    return cpu_operators(items), names, f"as convert decides for {march}"
