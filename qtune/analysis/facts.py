"""Collects what ``compare`` needs to know beside the two runs."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, fx

from qtune.analysis.compare import Facts
from qtune.analysis.own_error import OwnError, own_errors
from qtune.capture.inputs import Inputs
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat.op import QATOp
from qtune.ops.spec import FuseRole, Rule
from qtune.prepare.operators import has_float_result
from qtune.profiler.observe import Model, Observation, active_quantizers, operator_of
from qtune.quantizers.fake_quantize import FakeQuantize

BC_TYPES = ("export", "convert")


def facts_of(
    baseline: Model, analysed: Model, analysis_type: str, inputs: Inputs, run: Observation
) -> Facts:
    """Owners of scales, fixed scales, quantized outputs, and own errors of an analysis.

    ``run``: what the baseline computed.
    """
    prepared = [m for m in (baseline, analysed) if isinstance(m, PreparedModel)]
    errors = _own_errors(analysed, inputs, run) if analysis_type in BC_TYPES else None
    stage = analysed.stage if isinstance(analysed, HbirModule) else ""
    qat_bc, int_bc = (errors if stage == kind else None for kind in ("qat", "quantized"))
    if not prepared:
        return Facts(qat_bc=qat_bc, int_bc=int_bc)
    model = prepared[-1]
    own = active_quantizers(model)
    fixed = {name for name, q in own.items() if q.activation_post_process.is_fixed}
    return Facts(
        frozenset(own),
        frozenset(fixed),
        frozenset(quantized_gemm_outputs(model)),
        qat_bc=qat_bc,
        int_bc=int_bc,
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


def _own_errors(module: Model, inputs: Inputs, run: Observation) -> Mapping[str, OwnError] | None:
    if not isinstance(module, HbirModule):
        return None
    feed: dict[str, Tensor] = bind_call(module[0], inputs.args, dict(inputs.kwargs))
    return own_errors(run, feed, module)
