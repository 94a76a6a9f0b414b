"""Inputs and weights of one operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qtune.dtype import FloatDType, QuantDType, float16, qint8, qint16
from qtune.march import March
from qtune.ops.spec import Rule
from qtune.qconfig.config import GroupConfig, PortConfig
from qtune.qconfig.dtypes import Float, Numeric, PortDType
from qtune.qconfig.march_check import fit_input, fit_weight
from qtune.qconfig.plan import Decision, OpView, PortPlan
from qtune.qconfig.rules import Level, input_ports

FORCED = "inside a decomposed operator"
FOLLOWS = "follows its producer"
TABLE_REASON = "a table gives qint16 only from qint16"
INT16_REASON = "a constant beside int16 inside a decomposed operator"
MIXED = "one of the calls of this shared operator gives {}"
FLOAT16_REASON = "an operator computes in float16, or in integers"


@dataclass(frozen=True, slots=True)
class Port:
    """What one input or weight is: its dtype, the fake-quantize if one is needed, the reason."""

    dtype: Numeric
    plan: PortPlan | None = None
    decision: Decision | None = None


def plan_inputs(
    view: OpView,
    config: GroupConfig,
    given: Mapping[str, PortDType | None],
    march: March,
    inner: Collection[str],
    mixed: Mapping[tuple[str, int], PortDType],
) -> dict[int, Port]:
    """The operands that carry quantized numbers, by operand.

    An operand gets a fake-quantize of its own where its dtype is not the producer's, where a
    threshold is asked for it, and where it comes from a float operator or is a constant.
    ``inner``: names of the fused group, between whose members nothing is quantized. ``mixed``:
    operands that further calls of a shared operator give in float, and in which; one fake-quantize
    serves all calls there.
    """
    ports = {}
    int16_inside = view.is_part and any(given.get(str(p)) == qint16 for p in view.producers)
    for index in input_ports(view):
        source = None if index in view.constants else view.producers[index]
        if source in inner:
            continue
        have = Float.PORT if source is None else given[source]
        if have is not None:
            wide = int16_inside and index in view.constants and not view.is_gemm
            calls = mixed.get((view.name, index))
            have = have if calls is None else calls
            ports[index] = _plan_input(
                view, index, config, have, march, len(inner) > 1, wide, calls is not None
            )
    return ports


def _plan_input(
    view: OpView,
    index: int,
    config: GroupConfig,
    have: PortDType,
    march: March,
    fused: bool,
    wide: bool,
    mixed: bool,
) -> Port:
    name = f"input-{index}"
    port = config.ports[view.name, name]
    asked, rule, why = _asked(view, config, port, have, fused)
    if wide and why == "" and asked == qint8 and port.dtype is None:
        asked, rule, why = qint16, FORCED, INT16_REASON
    fitted = fit_input(view, asked, march, index)
    source = "a constant" if index in view.constants else view.producers[index]
    why = MIXED.format(have) if mixed else why
    reason = fitted.reason or why or _source_reason(source, have, fitted.dtype)
    if fitted.dtype == have and port.threshold is None and not mixed:
        decision = _decision(view, name, asked, fitted.dtype, rule, reason) if reason else None
        return Port(fitted.dtype, None, decision)
    plan = PortPlan(fitted.dtype, port.constructor, rule, port.threshold)
    return Port(fitted.dtype, plan, _decision(view, name, asked, fitted.dtype, rule, reason))


def _asked(
    view: OpView, config: GroupConfig, port: PortConfig, have: PortDType, fused: bool
) -> tuple[Numeric, str, str]:
    """The dtype that is wanted for an operand, the rule, and a reason of its own."""
    if not (port.dtype is None or isinstance(port.dtype, Float)):
        return port.dtype, port.rule, ""
    rule = port.rule if port.threshold is not None else FOLLOWS
    wanted = wanted_output(view, config)
    if float16 in (have, wanted):
        return _beside_float16(view, config, have, rule, fused)
    if isinstance(have, QuantDType):
        if view.rule is Rule.TABLE and wanted == qint16 and have != qint16:
            return qint16, config.output.rule, TABLE_REASON
        return have, rule, ""
    return wanted if isinstance(wanted, QuantDType) else qint8, rule, ""


def _beside_float16(
    view: OpView, config: GroupConfig, have: PortDType, rule: str, fused: bool
) -> tuple[Numeric, str, str]:
    """Where operand or result is float16: the operands of a GEMM's group are integers, a result
    with its input's scale or with none follows its producer, all others take what they give.
    """
    wanted = wanted_output(view, config)
    if view.is_gemm or fused:
        integer = qint8 if view.is_gemm else qint16
        return (have if isinstance(have, QuantDType) else integer), rule, ""
    if view.rule in (Rule.INPUT_SCALE, Rule.NO_SCALE):
        return (float16 if isinstance(have, Float) else have), rule, ""
    if isinstance(wanted, (QuantDType, FloatDType)):
        return wanted, config.output.rule, "" if wanted == have else FLOAT16_REASON
    return (float16 if isinstance(have, Float) else have), rule, ""


def _source_reason(source: str | None, have: PortDType, got: Numeric) -> str:
    if have is Float.PORT:
        return "a constant" if source == "a constant" else f"{source} is float"
    return "" if have == got else f"{source} gives {have}"


def wanted_output(view: OpView, config: GroupConfig) -> PortDType | None:
    """The output dtype that is asked for; inside a decomposed operator its forced one.

    The parts of an operator in float16 are in float16, too: int16 inside would only add borders.
    """
    forced = view.forced_dtype is not None and config.output.dtype != float16
    if forced and config.output.level < Level.EXACT:
        return view.forced_dtype
    return config.output.dtype


def plan_weight(
    view: OpView, config: GroupConfig, inputs: Mapping[int, Port], march: March
) -> Port:
    """The weight of an operator, one scale per channel."""
    port = config.ports[view.name, "weight"]
    asked = qint8 if port.dtype is None or isinstance(port.dtype, Float) else port.dtype
    operand = next((p.dtype for p in inputs.values()), None) if view.is_gemm else None
    fitted = fit_weight(view, asked, operand, march)
    plan = PortPlan(fitted.dtype, port.constructor, port.rule, port.threshold)
    decision = _decision(view, "weight", asked, fitted.dtype, port.rule, fitted.reason)
    return Port(fitted.dtype, plan, decision)


def _decision(
    view: OpView, port: str, asked: Numeric, given: Numeric, rule: str, reason: str
) -> Decision:
    return Decision(view.name, port, str(asked), str(given), rule, reason, asked != given)
