"""The output of a fused group: its dtype, high precision, and what its members give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qtune.dtype import float16, qint8, qint16
from qtune.march import March
from qtune.ops.spec import FuseRole, Rule
from qtune.qconfig.config import GroupConfig
from qtune.qconfig.dtypes import Float, Numeric, PortDType
from qtune.qconfig.march_check import fit_output, refuses_high_precision
from qtune.qconfig.plan import Decision, ModelOutput, OpView, PortPlan
from qtune.qconfig.ports import FORCED, TABLE_REASON, Port, wanted_output
from qtune.qconfig.rules import Level

LAST_GEMM = "last GEMM before the model's end"
HIGH_PRECISION = "high-precision output"
KEEPS_SCALE = "keeps the scale of its input"


@dataclass(slots=True)
class OutputChoice:
    """What the members of a group give, the plans of outputs, and the decisions behind."""

    given: dict[str, PortDType | None] = field(default_factory=dict)
    outputs: dict[str, PortPlan] = field(default_factory=dict)
    float_reasons: dict[str, str] = field(default_factory=dict)
    high_precision: str = ""
    decisions: list[Decision] = field(default_factory=list)


def leaves_model(view: OpView, views: Mapping[str, OpView]) -> bool:
    """Whether the result leaves the model, as it is or through a DeQuantStub, and goes nowhere
    else.
    """
    known = [views[name] for name in view.consumers if name in views]
    through_stub = any(consumer.dequantizes for consumer in known)
    return (view.is_model_output or through_stub) and all(c.dequantizes for c in known)


def low_output(
    group: Sequence[OpView],
    config: GroupConfig,
    operands: Sequence[Numeric],
    march: March,
    views: Mapping[str, OpView],
) -> list[ModelOutput]:
    """What to say about a group whose result leaves the model quantized: one item or none."""
    last, asked = group[-1], config.output
    known = [views[name] for name in last.consumers if name in views]
    if not (last.is_model_output or any(view.dequantizes for view in known)):
        return []
    if asked.dtype == float16 or last.rule is Rule.NO_SCALE or last.takes_float:
        return []
    gemm = next((view for view in group if view.is_gemm), None)
    if gemm is None:
        return [ModelOutput(last.name, f"only a GEMM has one, this is {last.op}")]
    refused = refuses_high_precision(gemm, march, operands)
    relu = next((view for view in group if view.fuse is FuseRole.RELU), None)
    if refused:
        return [ModelOutput(last.name, refused)]
    if relu is not None:
        return [ModelOutput(last.name, f"{relu.name} is fused into {gemm.name}")]
    inside = next((view.name for view in known if not view.dequantizes), "")
    if inside:
        return [ModelOutput(last.name, f"{inside} uses it as well")]
    meant = asked.level is Level.EXACT and not asked.from_qconfig
    return [ModelOutput(last.name, f"{asked.dtype} by {asked.rule}", avoidable=not meant)]


def choose_output(
    group: Sequence[OpView],
    config: GroupConfig,
    operands: Sequence[Numeric],
    march: March,
    leaves: bool,
    inputs: Mapping[str, Mapping[int, Port]],
) -> OutputChoice:
    """Decide the output of a group that is quantized.

    ``operands``: dtypes of both factors of its GEMM. ``leaves``: see :func:`leaves_model`.
    ``inputs``: the planned operands of each member.
    """
    last = group[-1]
    choice = OutputChoice()
    for view in group[:-1]:
        choice.given[view.name] = None
        choice.decisions.append(
            Decision(view.name, "output", "", "", "", f"joins {last.name} before its requantize")
        )
    if not any(view.rule in {Rule.OWN_SCALE, Rule.TABLE} for view in group):
        _pass_on(choice, last, config, inputs[last.name])
        return choice
    note = ""
    if any(view.is_gemm for view in group):
        note = _high_precision(choice, group, config, operands, march, leaves)
    if not choice.high_precision:
        _quantized(choice, group, config, march, inputs[last.name], note, operands)
    return choice


def _pass_on(
    choice: OutputChoice, view: OpView, config: GroupConfig, inputs: Mapping[int, Port]
) -> None:
    """A result that keeps its input's scale, or has none."""
    keeps = view.rule is Rule.INPUT_SCALE and 0 in inputs
    given: PortDType | None = inputs[0].dtype if keeps else None
    if given == float16 and not view.several_results:  # a clamp's bound may lie between its values
        choice.outputs[view.name] = PortPlan(float16, config.output.constructor, KEEPS_SCALE)
    if view.dequantizes:
        given = Float.PORT
    choice.given[view.name] = given
    asked, reason = config.output, KEEPS_SCALE if keeps else "its result has no scale"
    least = Level.EXACT if view.is_part else Level.PREFIX  # a prefix means the whole operator
    named = asked.level >= least and asked.dtype is not None
    named = named and (keeps or asked.level == Level.EXACT)
    ignored = named and (asked.dtype != given or asked.threshold is not None)
    choice.decisions.append(
        Decision(
            view.name,
            "output",
            str(asked.dtype) if ignored else "",
            str(given) if given else "",
            asked.rule if ignored else "",
            f"{reason}; set it where that is made" if ignored and keeps else reason,
            ignored,
        )
    )


def _high_precision(
    choice: OutputChoice,
    group: Sequence[OpView],
    config: GroupConfig,
    operands: Sequence[Numeric],
    march: March,
    leaves: bool,
) -> str:
    """Make the output high precision where it is asked or due; else the reason why not."""
    asked = config.output
    explicit = asked.dtype is Float.PORT
    due = leaves and asked.level < Level.WHOLE and not asked.dtype_frozen
    if not (explicit or due):
        return ""
    gemm = next(view for view in group if view.is_gemm)
    refused = refuses_high_precision(gemm, march, operands)
    if refused:
        return f"not high precision: {refused}"
    relus = [view for view in group if view.fuse is FuseRole.RELU]
    if relus and not explicit:
        return f"not high precision: {relus[0].name} is fused into it"
    body = [view for view in group if view.fuse is not FuseRole.RELU]
    choice.high_precision = body[-1].name
    for view in body[-1:] + relus:
        choice.given[view.name] = Float.PORT
    for view in relus:
        reason = f"follows the high-precision output of {body[-1].name}"
        choice.float_reasons[view.name] = reason
        choice.decisions.append(
            Decision(view.name, "operator", "", str(Float.PORT), asked.rule, reason)
        )
    choice.decisions = [d for d in choice.decisions if d.name != body[-1].name]
    rule = asked.rule if explicit else LAST_GEMM
    given = str(Float.PORT)
    choice.decisions.append(Decision(body[-1].name, "output", given, given, rule, HIGH_PRECISION))
    return ""


def _quantized(
    choice: OutputChoice,
    group: Sequence[OpView],
    config: GroupConfig,
    march: March,
    inputs: Mapping[int, Port],
    note: str,
    operands: Sequence[Numeric],
) -> None:
    last = group[-1]
    wanted = wanted_output(last, config)
    asked = _instead_of_float(group, march) if isinstance(wanted, Float | None) else wanted
    if asked == float16:
        note = _no_float16(group, march, operands)
        asked = qint16 if note else asked
    fitted = fit_output(group, asked, march)
    reason = fitted.reason or note
    dtype = fitted.dtype
    if last.rule is Rule.TABLE and dtype == qint16 and inputs and inputs[0].dtype != qint16:
        dtype, reason = qint8, TABLE_REASON
    forced = wanted is last.forced_dtype and wanted is not None and wanted != config.output.dtype
    rule = (last.forced_by or FORCED) if forced else config.output.rule
    threshold = config.output.threshold
    if dtype == float16 and threshold is not None:
        reason = f"float16 has no scale, so the threshold {threshold} is not needed"
    scale = last.fixed_scale
    if scale is not None:
        reason = "; ".join(filter(None, [reason, f"{last.op} fixes its scale at {scale}"]))
    choice.outputs[last.name] = PortPlan(
        dtype, config.output.constructor, rule, threshold, scale, last.bounds
    )
    choice.given[last.name] = dtype
    corrected = wanted != dtype
    choice.decisions.append(
        Decision(last.name, "output", str(wanted), str(dtype), rule, reason, corrected)
    )


def _no_float16(group: Sequence[OpView], march: March, operands: Sequence[Numeric]) -> str:
    """Why a result that was asked in float16 is an integer (``""`` where it is not)."""
    if group[-1].fixed_scale is not None:
        return "a fixed scale is for integers"
    gemm = next((view for view in group if view.is_gemm), None)
    reason = "" if gemm is None else refuses_high_precision(gemm, march, operands)
    return f"no float16: {reason}" if reason else ""


def _instead_of_float(group: Sequence[OpView], march: March) -> Numeric:
    """The finest grid, where a float output was asked and can't be."""
    return fit_output(group, qint16, march).dtype
