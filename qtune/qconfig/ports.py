"""Inputs and weights of one operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qtune.dtype import QuantDType, qint8, qint16
from qtune.march import March
from qtune.ops.spec import Rule
from qtune.qconfig.config import GroupConfig, PortConfig
from qtune.qconfig.dtypes import Float, PortDType
from qtune.qconfig.march_check import fit_input, fit_weight
from qtune.qconfig.plan import Decision, OpView, PortPlan
from qtune.qconfig.rules import Level, input_ports

FOLLOWS = "follows its producer"
TABLE_REASON = "a table gives qint16 only from qint16"


@dataclass(frozen=True, slots=True)
class Port:
    """What one input or weight is: its dtype, the fake-quantize if one is needed, the reason."""

    dtype: QuantDType
    plan: PortPlan | None = None
    decision: Decision | None = None


def plan_inputs(
    view: OpView,
    config: GroupConfig,
    given: Mapping[str, PortDType | None],
    march: March,
    inner: Collection[str],
) -> dict[int, Port]:
    """The operands that carry quantized numbers, by operand.

    An operand gets a fake-quantize of its own where its dtype is not the producer's, where a
    threshold is asked for it, and where it comes from a float operator or is a constant.
    ``inner``: names of the fused group, between whose members nothing is quantized.
    """
    ports = {}
    for index in input_ports(view):
        source = None if index in view.constants else view.producers[index]
        if source in inner:
            continue
        have = Float.PORT if source is None else given[source]
        if have is not None:
            ports[index] = _plan_input(view, index, config, have, march)
    return ports


def _plan_input(
    view: OpView, index: int, config: GroupConfig, have: PortDType, march: March
) -> Port:
    name = f"input-{index}"
    port = config.ports[view.name, name]
    asked, rule, why = _asked(view, config, port, have)
    fitted = fit_input(view, asked, march)
    source = "a constant" if index in view.constants else view.producers[index]
    reason = fitted.reason or why or _source_reason(source, have, fitted.dtype)
    if fitted.dtype == have and port.threshold is None:
        decision = _decision(view, name, asked, fitted.dtype, rule, reason) if reason else None
        return Port(fitted.dtype, None, decision)
    plan = PortPlan(fitted.dtype, port.constructor, rule, port.threshold)
    return Port(fitted.dtype, plan, _decision(view, name, asked, fitted.dtype, rule, reason))


def _asked(
    view: OpView, config: GroupConfig, port: PortConfig, have: PortDType
) -> tuple[QuantDType, str, str]:
    """The dtype that is wanted for an operand, the rule, and a reason of its own."""
    if isinstance(port.dtype, QuantDType):
        return port.dtype, port.rule, ""
    rule = port.rule if port.threshold is not None else FOLLOWS
    wanted = wanted_output(view, config)
    if isinstance(have, QuantDType):
        if view.rule is Rule.TABLE and wanted == qint16 and have != qint16:
            return qint16, config.output.rule, TABLE_REASON
        return have, rule, ""
    return wanted if isinstance(wanted, QuantDType) else qint8, rule, ""


def _source_reason(source: str | None, have: PortDType, got: QuantDType) -> str:
    if have is Float.PORT:
        return "a constant" if source == "a constant" else f"{source} is float"
    return "" if have == got else f"{source} gives {have}"


def wanted_output(view: OpView, config: GroupConfig) -> PortDType | None:
    """The output dtype that is asked for; inside a decomposed operator its forced one."""
    if view.forced_dtype is not None and config.output.level < Level.EXACT:
        return view.forced_dtype
    return config.output.dtype


def plan_weight(
    view: OpView, config: GroupConfig, inputs: Mapping[int, Port], march: March
) -> Port:
    """The weight of an operator, one scale per channel."""
    port = config.ports[view.name, "weight"]
    asked = port.dtype if isinstance(port.dtype, QuantDType) else qint8
    operand = next((p.dtype for p in inputs.values()), None) if view.is_gemm else None
    fitted = fit_weight(asked, operand, march)
    plan = PortPlan(fitted.dtype, port.constructor, port.rule, port.threshold)
    decision = _decision(view, "weight", asked, fitted.dtype, port.rule, fitted.reason)
    return Port(fitted.dtype, plan, decision)


def _decision(
    view: OpView, port: str, asked: QuantDType, given: QuantDType, rule: str, reason: str
) -> Decision:
    return Decision(view.name, port, str(asked), str(given), rule, reason, asked != given)
