"""Why an operator or a fused group stays float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qtune.dtype import float16
from qtune.march import March
from qtune.ops.spec import Rule
from qtune.qconfig.config import GroupConfig, PortConfig
from qtune.qconfig.dtypes import Float, PortDType
from qtune.qconfig.march_check import refusal
from qtune.qconfig.plan import OpView, Refusal
from qtune.qconfig.rules import input_ports

Given = Mapping[str, PortDType | None]
"""dtype of each operator's result; ``None``: no number with a scale (bool, integer)."""


def float_reason(group: Sequence[OpView], config: GroupConfig, given: Given) -> str | None:
    """Why the configuration, or what comes in, leaves the group float; ``None`` if it doesn't."""
    for view in group:
        if view.float_reason:
            return view.float_reason
    return config.kept_float or _ports_reason(group, config) or _operand_reason(group, given)


def march_refusal(group: Sequence[OpView], config: GroupConfig, march: March) -> Refusal | None:
    """The first member that the march can't run, or that is asked in float16 where it has none."""
    if not march.limits.float16:
        for port, asked in (("output", config.output), *_named_ports(config)):
            if asked.dtype == float16:
                lacking = no_float16(port, asked.rule, march)
                return Refusal(group[-1].name, group[-1].op, lacking, by_configuration=True)
    for view in group:
        reason = refusal(view, march)
        if reason is not None:
            return Refusal(view.name, view.op, reason)
    return None


def _named_ports(config: GroupConfig) -> list[tuple[str, PortConfig]]:
    return [(port, asked) for (_, port), asked in config.ports.items()]


def no_float16(port: str, rule: str, march: March) -> str:
    """What to say about a float16 that the march lacks."""
    able = ", ".join(other.value for other in March if other.limits.float16)
    return (
        f"{port} is float16 by {rule}, and {march} does not compute in float16; set qint16 or "
        f"qint8 there, or choose {able}"
    )


def without_quantized_input(
    group: Sequence[OpView], config: GroupConfig, given: Given
) -> str | None:
    """Why a GEMM with a float output has nothing to quantize: its operands are float too."""
    names = {view.name for view in group}
    for view in group:
        if not view.is_gemm:
            continue
        sources = [view.producers[i] for i in _outer(view, names)]
        asked = any(config.ports[view.name, f"input-{i}"].dtype for i in input_ports(view))
        if not asked and all(given.get(s or "") in {Float.PORT, None} for s in sources):
            return f"output kept float by {config.output.rule}, and its input is float"
    return None


def _ports_reason(group: Sequence[OpView], config: GroupConfig) -> str | None:
    for view in group:
        for (name, port), asked in config.ports.items():
            if name == view.name and asked.dtype is Float.PORT:
                return f"{port} kept float by {asked.rule}"
    has_gemm = any(view.is_gemm for view in group)
    scaled = any(view.rule is not Rule.NO_SCALE for view in group)
    if config.output.dtype is Float.PORT and scaled and not has_gemm:
        return f"output kept float by {config.output.rule}"
    return None


def _operand_reason(group: Sequence[OpView], given: Given) -> str | None:
    first = group[0]
    if any(view.is_gemm for view in group):
        gemm = next(view for view in group if view.is_gemm)
        return None if input_ports(gemm) else "its input comes from no quantized operator"
    if first.rule is Rule.INPUT_SCALE and 0 not in first.constants and not first.weight:
        source = first.producers[0] if first.producers else None
        if source is None:
            return "its input comes from no quantized operator"
        return _float_source(source, given)
    if first.rule is Rule.NO_SCALE and not first.dequantizes:
        sources = [p for p in first.producers if p is not None]
        reasons = [_float_source(source, given) for source in sources]
        return reasons[0] if reasons and all(reasons) else None
    return None


def _float_source(source: str, given: Given) -> str | None:
    return f"its input {source} is float" if given[source] is Float.PORT else None


def _outer(view: OpView, names: set[str]) -> list[int]:
    """Operands that come from outside the group, constants left out."""
    inputs = [i for i in input_ports(view) if i not in view.constants]
    return [i for i in inputs if view.producers[i] not in names]
