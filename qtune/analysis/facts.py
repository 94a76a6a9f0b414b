"""Collects what ``compare`` needs to know beside the two runs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from qtune.analysis.compare import Facts
from qtune.analysis.op_error import op_errors
from qtune.capture.inputs import Inputs
from qtune.hbir.builder import META_OP, META_RESULT, META_SCALE
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat.op import QATOp
from qtune.ops.spec import FuseRole, Rule
from qtune.prepare.operators import has_float_result
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.observe import Model, active_quantizers, operator_of
from qtune.profiler.observe_hbir import operand_keys
from qtune.profiler.record import Observation
from qtune.quantizers.fake_quantize import FakeQuantize

BC_TYPES = ("export", "convert")


def facts_of(
    baseline: Model,
    analysed: Model,
    analysis_type: str,
    inputs: Inputs | None,
    run: Observation,
    metrics: Sequence[MetricInfo] = (),
) -> Facts:
    """Owners of scales, fixed scales, quantized outputs, and own errors of an analysis.

    ``run``: what the baseline computed. ``inputs``: those of the analysed model, which runs once;
    ``None``: not known, so no own errors.
    ``metrics``: of own errors; COSINE is one of them always.
    """
    cosine = Metric.get_metric("COSINE")
    wanted = [m for m in metrics if m.scope == "pertensor" and m.name != cosine.name]
    own = {} if inputs is None else op_errors(run, analysed, inputs, [*wanted, cosine])
    prepared = [m for m in (baseline, analysed) if isinstance(m, PreparedModel)]
    stage = analysed.stage if isinstance(analysed, HbirModule) else ""
    stage = stage if analysis_type in BC_TYPES else ""
    if not prepared:
        owners = _owners_in(analysed) if isinstance(analysed, HbirModule) else None
        return Facts(owners, own=own, stage=stage)
    model = prepared[-1]
    quantizers = active_quantizers(model)
    fixed = {name for name, q in quantizers.items() if q.activation_post_process.is_fixed}
    return Facts(
        frozenset(quantizers),
        frozenset(fixed),
        frozenset(quantized_gemm_outputs(model)),
        own,
        stage,
    )


def _owners_in(module: HbirModule) -> frozenset[str]:
    """Operators of a module whose result is on another scale than what they take."""
    scales = {
        node.metadata_props[META_OP]: node.outputs[0].metadata_props.get(META_SCALE)
        for node in module.model.graph
        if META_RESULT in node.metadata_props
    }
    takes = operand_keys(list(module.model.graph))
    return frozenset(
        name
        for name, scale in scales.items()
        if scale is not None and scale not in {scales.get(key) for key in takes.get(name, ())}
    )


def quantized_gemm_outputs(model: PreparedModel) -> list[str]:
    """Owners of the scale of a GEMM's result that leaves the model without an activation.

    Their output could be high precision. Operators behind the GEMM that keep its scale (an Identity
    in place of a batch norm, a reshape) don't change that.
    """
    known = value_quantizers(model)
    found = []
    for node, op in model.operators():
        is_last = any(user.op == "output" for user in node.users) and has_float_result(node)
        source = node.args[0] if node.args else None
        if is_last and op.spec.rule is Rule.NO_SCALE and isinstance(source, fx.Node):
            quantizer = known.get(source)
            if quantizer is not None and _comes_from_gemm(model, source):
                found += [o.name for _, o in model.operators() if _owns(o, quantizer)]
    return found


def _comes_from_gemm(model: PreparedModel, value: fx.Node) -> bool:
    maker = operator_of(model, value)
    while maker is not None and maker.spec.rule is Rule.INPUT_SCALE and maker.spec.fuse is None:
        source = value.args[0] if value.args else None
        if not isinstance(source, fx.Node):
            return False
        value, maker = source, operator_of(model, source)
    return maker is not None and maker.spec.fuse is FuseRole.GEMM


def _owns(op: QATOp, quantizer: FakeQuantize) -> bool:
    return op.activation_post_process is quantizer
