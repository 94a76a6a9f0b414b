"""Collects what ``compare`` needs to know beside the two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from qtune.analysis.compare import Facts
from qtune.analysis.observe import Model, Observation, is_prepared, type_name
from qtune.analysis.own_error import OwnError, own_errors
from qtune.capture.inputs import Inputs
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat.op import iter_ops

if TYPE_CHECKING:
    from qtune.analysis.quant_analysis import QuantAnalysis


def facts_of(analysis: QuantAnalysis, inputs: Inputs, baseline: Observation) -> Facts:
    """Types, fixed scales, quantized outputs, and own errors of an analysis."""
    models = (analysis.baseline_model, analysis.analysis_model)
    prepared = [m for m in models if isinstance(m, nn.Module) and is_prepared(m)]
    float_types = {op.name: op.float_type for model in prepared for op in iter_ops(model)}
    analysed = {op.name: type_name(op) for model in prepared for op in iter_ops(model)}
    fixed = frozenset(
        op.name
        for model in prepared
        for op in iter_ops(model)
        if (fq := op.activation_post_process) is not None and fq.activation_post_process.is_fixed
    )
    outputs = frozenset(name for model in prepared[-1:] for name in quantized_outputs(model))
    errors = _own_errors(analysis.analysis_model, inputs, baseline, analysis.analysis_model_type)
    stage = getattr(analysis.analysis_model, "stage", "")
    return Facts(
        float_types,
        analysed,
        fixed,
        outputs,
        qat_bc=errors if stage == "qat" else None,
        int_bc=errors if stage == "quantized" else None,
    )


def quantized_outputs(model: nn.Module) -> list[str]:
    """Operators whose quantized result leaves the model: no high-precision output."""
    known = value_quantizers(model)
    found = []
    for node in model.graph.nodes:  # type: ignore[union-attr]
        if node.op != "call_module":
            continue
        op = model.get_submodule(str(node.target))
        users = [u for u in node.users if u.op == "call_module"]
        ends = any(model.get_submodule(str(u.target)).op == "dequant_stub" for u in users)
        if ends and known.get(node) is not None:
            found.append(op.name)
    return found


def _own_errors(
    module: Model, inputs: Inputs, baseline: Observation, kind: str
) -> Mapping[str, OwnError] | None:
    if kind not in ("export", "convert") or not isinstance(module, HbirModule):
        return None
    feed: dict[str, Tensor] = bind_call(module[0], inputs.args, dict(inputs.kwargs))
    return own_errors(baseline, feed, module)
