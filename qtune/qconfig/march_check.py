"""What a march takes: dtypes of inputs, outputs and weights, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from qtune.dtype import float16, qint8, qint16, qint32
from qtune.march import March
from qtune.ops.spec import MarchRule
from qtune.qconfig.dtypes import Numeric
from qtune.qconfig.plan import OpView

WEIGHT_DTYPES = {
    "bernoulli": (qint8,),
    "bayes": (qint8,),
    "nash": (qint8, qint16),
}
"""Weight grids by series (toolchain_facts 1.2)."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A dtype the march takes, and why it is not the asked one (``""`` where it is)."""

    dtype: Numeric
    reason: str = ""


def refusal(view: OpView, march: March) -> str | None:
    """Why ``march`` can't run the operator at all, ``None`` if it can."""
    if view.march and _rule(view, march) is None:
        return _check(view, march)
    rank = max((len(s) for s in (*view.input_shapes, view.output_shape) if s), default=0)
    if rank > march.limits.max_rank:
        return f"a tensor of {rank} dimensions; {march} takes at most {march.limits.max_rank}"
    return None


def dtype_refusal(
    view: OpView, march: March, operands: Sequence[Numeric], output: Numeric | None
) -> str | None:
    """Why ``march`` can't run the operator with these dtypes, ``None`` if it can.

    ``output`` is ``None`` where the result has no dtype of its own.
    """
    names = frozenset(_name(dtype) for dtype in operands)
    return _dtype_reason(view, _rule(view, march), names, "" if output is None else _name(output))


def fit_input(view: OpView, asked: Numeric, march: March, index: int = -1) -> Correction:
    """The dtype that operand ``index`` gets for ``asked``."""
    rule = _rule(view, march)
    role = view.role(index)
    fitted = _fit(asked, rule.takes(march, role) if rule else None, march, f"input of {view.op}")
    if fitted.dtype != qint16 or rule is None:
        return fitted
    reason = _dtype_reason(view, rule, frozenset({qint16.name}), "")
    possible = reason is None or qint8.name not in rule.takes(march, role)
    return fitted if possible else Correction(qint8, str(reason))


def fit_output(views: Sequence[OpView], asked: Numeric, march: March) -> Correction:
    """The dtype the result of a fused group gets for ``asked``."""
    given = Correction(asked)
    for view in views:
        rule = _rule(view, march)
        allowed = rule.gives(march) if rule else None
        fitted = _fit(given.dtype, allowed, march, f"output of {view.op}")
        given = Correction(fitted.dtype, given.reason or fitted.reason)
    return given


def fit_weight(view: OpView, asked: Numeric, operand: Numeric | None, march: March) -> Correction:
    """The dtype a GEMM's weight gets for ``asked`` beside an operand of dtype ``operand``."""
    allowed = WEIGHT_DTYPES[march.series]
    rule = _rule(view, march)
    own = () if rule is None else rule.operands.get("weight", ())
    if own and asked.name not in own:
        return Correction(qint8, f"{march} takes {' and '.join(own)} as weight of {view.op}")
    if asked not in allowed:
        names = ", ".join(d.name for d in allowed)
        return Correction(qint8, f"{march} takes weights of {names} only")
    if asked == operand == qint16 and not march.limits.dual_int16:
        return Correction(qint8, f"{march} takes no GEMM with two int16 operands")
    return Correction(asked)


def refuses_high_precision(view: OpView, march: March, operands: Sequence[Numeric]) -> str:
    """Why a GEMM can't give its int32 result on ``march`` (``""`` if it can).

    ``operands``: dtypes of both operands of the product.
    """
    if all(dtype == qint16 for dtype in operands):
        return "two int16 operands have no high-precision output"
    rule = _rule(view, march)
    if rule is not None and qint32.name not in rule.outputs:
        return f"{march} has no high-precision output of {view.op}"
    return ""


def _name(dtype: Numeric) -> str:
    return dtype.name


def _rule(view: OpView, march: March) -> MarchRule | None:
    for rule in view.march:
        if rule.covers(march) and _reason(view, rule) is None:
            return rule
    return None


def _check(view: OpView, march: March) -> str:
    for rule in view.march:
        reason = _reason(view, rule) if rule.covers(march) else None
        if reason is not None:
            return reason
    return f"{march} has no {view.op}"


def _reason(view: OpView, rule: MarchRule) -> str | None:
    if rule.check is None or not view.input_shapes:
        return None
    return rule.check(view.attrs, cast(Any, view.input_shapes), view.output_shape)


def _dtype_reason(
    view: OpView, rule: MarchRule | None, inputs: frozenset[str], output: str
) -> str | None:
    if rule is None or rule.check_dtypes is None or not view.input_shapes:
        return None
    return rule.check_dtypes(view.attrs, view.input_shapes, inputs, output)


def _fit(asked: Numeric, allowed: tuple[str, ...] | None, march: March, what: str) -> Correction:
    grids: tuple[Numeric, ...] = (qint8, qint16, float16)
    possible = [
        grid
        for grid in grids
        if (allowed is None or grid.name in allowed)
        and (grid != qint16 or march.limits.int16_activations)
        and (grid != float16 or march.limits.float16)
    ]
    if asked in possible or not possible:
        return Correction(asked)
    names = " and ".join(grid.name for grid in possible)
    finest = qint16 if asked == float16 and qint16 in possible else possible[0]
    return Correction(finest, f"{march} takes {names} as {what}")
