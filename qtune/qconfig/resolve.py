"""From the operators and the configuration to one plan per operator, each choice explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from qtune.dtype import FloatDType, QuantDType, float16, qint8, qint32
from qtune.errors import ArgumentError, QconfigError
from qtune.march import March, get_march
from qtune.ops.spec import Rule
from qtune.qconfig.accept import AnySetter, rules_of
from qtune.qconfig.config import Configurator, GroupConfig
from qtune.qconfig.demands import demanded
from qtune.qconfig.dtypes import Float, Numeric, PortDType
from qtune.qconfig.floating import float_reason, march_refusal, without_quantized_input
from qtune.qconfig.march_check import dtype_refusal
from qtune.qconfig.outputs import OutputChoice, choose_output, leaves_model, low_output
from qtune.qconfig.plan import (
    Basis,
    Decision,
    ModelOutput,
    OpQuantPlan,
    OpView,
    PortPlan,
    Refusal,
    Resolution,
)
from qtune.qconfig.ports import Port, plan_inputs, plan_weight
from qtune.qconfig.rules import Rules, Template, input_ports


def resolve(
    views: Sequence[OpView], setter: AnySetter = None, march: March | None = None
) -> Resolution:
    """Decide for every operator which ports are quantized, and how.

    ``views`` in execution order; ``setter`` as in ``prepare``; ``march`` default ``get_march()``.
    Rules, later ones winning: the reference qconfig; the templates in their order, unless an
    earlier one froze its setting; ``module.qconfig``, which stands alone. The
    last GEMM before the model's end (without a fused relu) has a high-precision output unless a
    rule names it. Where the calls of a shared operator give an operand in float and in integers, it
    gets one fake-quantize for all of them. What the march refuses is replaced by what it takes, and
    said in ``explanation``.
    """
    known, target = demanded(views), march or get_march()
    rules = rules_of(setter)
    mixed: dict[tuple[str, int], PortDType] = {}
    while True:
        resolver = _Resolver(known, rules, target, mixed)
        resolution = resolver.run()
        more = {key: dtype for key, dtype in resolver.mixed_operands() if key not in mixed}
        if not more:
            return replace(resolution, basis=Basis(tuple(views), rules, target))
        mixed.update(more)


def resolve_with(basis: Basis, templates: Sequence[Template]) -> Resolution:
    """The decisions with ``templates`` after those of the setter that decided before."""
    rules = replace(basis.rules, templates=(*basis.rules.templates, *templates))
    return resolve(basis.views, rules, basis.march)


class _Resolver:
    """The state of one ``resolve``: what each operator gives to the ones after it."""

    def __init__(
        self,
        views: Sequence[OpView],
        rules: Rules,
        march: March,
        mixed: Mapping[tuple[str, int], PortDType],
    ) -> None:
        self._views = views
        self._rules = rules
        self._march = march
        self._mixed = mixed
        self._configurator = Configurator(rules, views)
        self._by_name = {view.name: view for view in views}
        self._given: dict[str, PortDType | None] = {}
        self._plans: dict[str, OpQuantPlan] = {}
        self._decisions: list[Decision] = []
        self._refused: list[Refusal] = []
        self._outputs: list[ModelOutput] = []
        self._float_groups: dict[str, str] = {}

    def run(self) -> Resolution:
        """Go through the groups, each at its last member."""
        for group in _groups(self._views):
            self._check_order(group)
            self._resolve_group(group)
        plans = {view.name: self._plans[view.name] for view in self._views}
        return Resolution(
            plans,
            tuple(self._decisions),
            tuple(self._idle_rules()),
            tuple(self._refused),
            tuple(self._outputs),
            self._rules.advise_outputs,
        )

    def _idle_rules(self) -> Iterator[str]:
        """Rules that decided nothing: they name nothing, or others speak last, or all is float."""
        asked = self._configurator
        used = frozenset(asked.used)
        yield from self._rules.unheard
        for template in asked.templates:
            yield from template.unmatched(self._views, used)
        for rule, places in asked.spoken.items():
            reasons = [self._float_groups.get(name) for name, _ in places]
            name, port = places[0]
            if all(reason is not None and rule not in reason for reason in reasons):
                yield f"{rule}: {name} stays float: {reasons[0]}"
            elif rule not in asked.settled:
                yield f"{rule}: another rule decides the {port} of {name}"

    def mixed_operands(self) -> Iterator[tuple[tuple[str, int], PortDType]]:
        """Operands that some calls of a shared operator give in float and others in integers."""
        for view in self._views:
            if not view.later_producers or self._plans[view.name].float_reason is not None:
                continue
            for index in input_ports(view):
                calls = [
                    c[index] for c in (view.producers, *view.later_producers) if index < len(c)
                ]
                dtypes = {self._given.get(source or "") for source in calls} - {None}
                floats = [dtype for dtype in (float16, Float.PORT) if dtype in dtypes]
                if floats and len(dtypes) > 1:
                    yield (view.name, index), floats[0]

    def _check_order(self, group: Sequence[OpView]) -> None:
        names = {view.name for view in group}
        for view in group:
            missing = [p for p in view.producers if p and p not in self._given and p not in names]
            if missing:
                raise ArgumentError(
                    f"{view.name}: its operand {missing[0]} is not among the views before it; "
                    "views must come in execution order"
                )

    def _resolve_group(self, group: list[OpView]) -> None:
        config = self._configurator.configure(group)
        reason = float_reason(group, config, self._given)
        refused = march_refusal(group, config, self._march) if reason is None else None
        if refused is not None:
            self._refused.append(refused)
            reason = f"{self._march} can't run it: {refused.reason}"
        if reason is None and config.output.dtype is Float.PORT:
            reason = without_quantized_input(group, config, self._given)
        if reason is not None:
            # What follows a refused operator is checked as if that one had given integers.
            self._keep_float(group, reason, Float.PORT if refused is None else qint8)
        else:
            self._quantize(group, config)

    def _keep_float(self, group: Sequence[OpView], reason: str, given: PortDType) -> None:
        for view in group:
            self._float_groups[view.name] = reason
            self._plans[view.name] = OpQuantPlan(float_reason=reason)
            self._given[view.name] = None if _is_plain(view) else given
            self._decisions.append(Decision(view.name, "operator", "", str(Float.PORT), "", reason))

    def _quantize(self, group: list[OpView], config: GroupConfig) -> None:
        inputs = {view.name: self._inputs(view, group, config) for view in group}
        weights = {view.name: self._weight(view, config, inputs[view.name]) for view in group}
        gemm = next((view for view in group if view.is_gemm), None)
        operands = [] if gemm is None else _operands(inputs[gemm.name], weights[gemm.name])
        leaves = leaves_model(group[-1], self._by_name)
        choice = choose_output(group, config, operands, self._march, leaves, inputs)
        if not choice.high_precision:
            low = low_output(group, config, operands, self._march, self._by_name)
            self._outputs.extend(low)
        self._refuse_dtypes(group, inputs, choice)
        self._decisions.extend(choice.decisions)
        for view in group:
            plan = _plan(view, choice, inputs[view.name], weights[view.name])
            self._plans[view.name] = replace(plan, qconfig=config.qconfig)
            self._given[view.name] = choice.given[view.name]

    def _refuse_dtypes(
        self, group: Sequence[OpView], inputs: Mapping[str, dict[int, Port]], choice: OutputChoice
    ) -> None:
        """Limits of the march that depend on the dtypes just chosen."""
        given = choice.given[group[-1].name]
        output = qint32 if choice.high_precision else None if isinstance(given, Float) else given
        for view in group:
            operands = [port.dtype for port in inputs[view.name].values()]
            reason = dtype_refusal(view, self._march, operands, output)
            if reason is not None:
                self._refused.append(Refusal(view.name, view.op, reason))

    def _inputs(
        self, view: OpView, group: Sequence[OpView], config: GroupConfig
    ) -> dict[int, Port]:
        inner = {member.name for member in group}
        ports = plan_inputs(view, config, self._given, self._march, inner, self._mixed)
        self._decisions.extend(p.decision for p in ports.values() if p.decision is not None)
        return ports

    def _weight(self, view: OpView, config: GroupConfig, inputs: dict[int, Port]) -> Port | None:
        if not view.weight:
            return None
        port = plan_weight(view, config, inputs, self._march)
        if port.decision is not None:
            self._decisions.append(port.decision)
        return port


def _plan(
    view: OpView, choice: OutputChoice, inputs: dict[int, Port], weight: Port | None
) -> OpQuantPlan:
    if view.name in choice.float_reasons:
        return OpQuantPlan(float_reason=choice.float_reasons[view.name])
    given = choice.given[view.name]
    plans: dict[int, PortPlan] = {i: p.plan for i, p in inputs.items() if p.plan is not None}
    return OpQuantPlan(
        output=choice.outputs.get(view.name),
        weight=weight.plan if weight else None,
        inputs=plans,
        dtype=given if isinstance(given, (QuantDType, FloatDType)) else None,
        high_precision=view.name == choice.high_precision,
    )


def _operands(inputs: dict[int, Port], weight: Port | None) -> list[Numeric]:
    """dtypes of the two factors of a GEMM."""
    factors = [port.dtype for port in inputs.values()]
    return factors[:1] + [weight.dtype] if weight else factors[:2]


def _groups(views: Sequence[OpView]) -> list[list[OpView]]:
    """The fused groups in the order of their last members."""
    groups: dict[str, list[OpView]] = {}
    for view in views:
        if view.rule is Rule.DECOMPOSED:
            raise QconfigError(
                f"{view.name}: {view.op} must be decomposed before dtypes are resolved"
            )
        groups.setdefault(view.group or view.name, []).append(view)
    places = {view.name: place for place, view in enumerate(views)}
    if len(places) != len(views):
        twice = [v.name for i, v in enumerate(views) if places[v.name] != i]
        raise ArgumentError(f"operator {twice[0]!r} occurs twice among the views")
    for name, group in groups.items():
        if group[-1].name != name:
            raise ArgumentError(
                f"group {name!r} must be named after its last member, which is {group[-1].name!r}"
            )
    return sorted(groups.values(), key=lambda group: places[group[-1].name])


def _is_plain(view: OpView) -> bool:
    return view.rule is Rule.NO_SCALE and not view.dequantizes
