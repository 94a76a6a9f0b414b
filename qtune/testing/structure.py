"""``assert_no_shared_ops`` and ``assert_no_unfused``: structure that harms quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from qtune.check.qat_model import check_qat_model
from qtune.errors import ArgumentError
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat.op import QATOp
from qtune.testing.arguments import Onnx, OnnxGraph, check_prepared
from qtune.testing.onnx_model import OnnxModel, as_model, stage_error
from qtune.testing.onnx_structure import unfused, weight_readers
from qtune.testing.origin import origin_of
from qtune.testing.record import conclude
from qtune.testing.result import PATTERNS, PORTS, AssertionResult, LayerResult


def assert_no_shared_ops(
    model: nn.Module | Onnx, *, inputs: Any = None, name: str | None = None
) -> AssertionResult:
    """Assert that every operator of a prepared model runs once in a forward.

    An operator that runs twice has one scale for two results. The calls are counted in the captured
    graph; with ``inputs`` (a tensor, a tuple of arguments or ``qtune.Inputs``) in a run on them.
    Operators that never run are listed, but don't fail.

    In an ONNX model every node runs once; there a weight that several nodes read fails: it has one
    grid for all of them, and its bias has another scale for each.
    """
    __tracebackhide__ = True
    model = as_model("assert_no_shared_ops", "model", model)
    if isinstance(model, OnnxModel):
        _refuse_inputs("assert_no_shared_ops", inputs)
        return conclude(_shared_weights(model, name))
    prepared = check_prepared("assert_no_shared_ops", model)
    counts = _graph_calls(prepared)
    if inputs is not None:
        counts = dict(check_qat_model(prepared, inputs).call_counts)
    shared = {op: count for op, count in counts.items() if count > 1}
    worst = max(shared, key=lambda op: shared[op], default="")
    unused = [op for op, count in counts.items() if count == 0]
    dtypes = _dtypes(prepared)
    layers = [
        LayerResult(op, float(count), count <= 1, float(count), dtype=dtypes.get(op, ""))
        for op, count in counts.items()
    ]
    origin = origin_of(model, name)
    return conclude(
        AssertionResult(
            check="no_shared_ops",
            model=origin.model,
            ok=not shared,
            where=worst,
            got=f"{shared[worst]} calls" if shared else "1 call each",
            limit="1 call",
            metrics={"shared_ops": len(shared), "unused_ops": len(unused)},
            limits={"calls": 1},
            layers=origin.located(layers),
            measured="calls in one forward",
            table=f"never called: {', '.join(unused)}" if unused else "",
            advice="Give each call a module of its own: one scale can't fit two results."
            if shared
            else "",
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def assert_no_unfused(
    model: nn.Module | OnnxGraph, *, inputs: Any = None, name: str | None = None
) -> AssertionResult:
    """Assert that every fusible pattern (GEMM, batch norm, add, relu) of a prepared model is fused.

    The message names the operators and what kept them apart. With ``inputs`` the model also runs
    once on them. Of an ONNX model the optimized or the calibrated one: what convert fuses.
    """
    __tracebackhide__ = True
    model = as_model("assert_no_unfused", "model", model)
    if isinstance(model, OnnxModel):
        _refuse_inputs("assert_no_unfused", inputs)
        if not model.is_fused:
            expected = "the optimized or the calibrated model (stages.calibrated)"
            raise stage_error("assert_no_unfused", "", model, expected)
        found: Sequence[Any] = unfused(model)
    else:
        found = _unfused(check_prepared("assert_no_unfused", model), inputs)
    origin = origin_of(model, name)
    return conclude(
        AssertionResult(
            check="no_unfused",
            model=origin.model,
            ok=not found,
            where=" + ".join(found[0].names) if found else "",
            got=f"{len(found)} unfused" if found else "all fused",
            limit="0 unfused",
            metrics={"unfused_patterns": len(found)},
            limits={"unfused_patterns": 0},
            layers=[
                LayerResult(
                    " + ".join(item.names),
                    None,
                    False,
                    float(len(item.names)),
                    source=origin.sources.get(item.names[0], ""),
                    found=item.reason,
                )
                for item in found
            ],
            measured="not fused",
            parts=PATTERNS,
            advice="Use the result of each of them once, and each module once." if found else "",
            artefact=origin.artefact,
            provenance=origin.provenance,
        )
    )


def _unfused(prepared: PreparedModel, inputs: Any) -> Sequence[Any]:
    """In order of execution."""
    if inputs is not None:
        check_qat_model(prepared, inputs)
    place = {op: index for index, op in enumerate(prepared.calls())}
    return sorted(
        prepared.unfused, key=lambda item: min(place.get(op, len(place)) for op in item.names)
    )


def _refuse_inputs(check: str, inputs: Any) -> None:
    if inputs is not None:
        raise ArgumentError(f"{check}: an ONNX model is a graph, nothing is run; leave inputs out")


def _shared_weights(model: OnnxModel, name: str | None) -> AssertionResult:
    """How many nodes read each weight."""
    readers = weight_readers(model)
    counts = {weight: len(nodes) for weight, nodes in readers.items()}
    worst = max(counts, key=lambda weight: counts[weight], default="")
    shared = sum(count > 1 for count in counts.values())
    origin = origin_of(model, name)
    return AssertionResult(
        check="no_shared_ops",
        model=origin.model,
        ok=not shared,
        where=worst if shared else "",
        got=f"{counts[worst]} nodes" if shared else "1 node for each weight",
        limit="1 node",
        metrics={"shared_ops": shared, "unused_ops": 0},
        limits={"calls": 1},
        layers=[
            LayerResult(weight, float(count), count <= 1, float(count), source=";".join(nodes))
            for (weight, nodes), count in zip(readers.items(), counts.values(), strict=True)
        ],
        measured="nodes that read a weight",
        parts=PORTS,
        advice="Give each node a weight of its own: one grid can't fit two layers."
        if shared
        else "",
        artefact=origin.artefact,
        provenance=origin.provenance,
    )


def _graph_calls(model: PreparedModel) -> dict[str, int]:
    """Calls by operator, in order of execution; modules that the graph never calls have 0."""
    counts = model.calls()
    for module in model.modules():
        if isinstance(module, QATOp):
            counts.setdefault(module.name, 0)
    return counts


def _dtypes(model: PreparedModel) -> dict[str, str]:
    """dtype of each operator's result; members of a fused group before its last have none."""
    found = {}
    known = value_quantizers(model)
    for node, op in model.operators():
        if node.meta.get("group", op.name) == op.name:
            quantizer = known[node]
            found[op.name] = "torch.float32" if quantizer is None else str(quantizer.dtype)
    return found
