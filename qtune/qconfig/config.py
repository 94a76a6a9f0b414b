"""The settings of one fused group, after all templates: what is asked, before what is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from qtune.dtype import FloatDType, QuantDType, qint8
from qtune.errors import QconfigError
from qtune.qconfig.dtypes import Float, PortDType
from qtune.qconfig.plan import UNSET, OpView
from qtune.qconfig.qconfig import FakeQuantizeConstructor, QConfig, weight_constructor
from qtune.qconfig.rules import NO_RULE, Level, Rules, Setting, bound, match, port_names
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.observer import MinMaxObserver

MODULE = "module.qconfig"
STUB_RULE = "QuantStubs need no rule of their own"


@dataclass(frozen=True, slots=True)
class PortConfig:
    """What is asked for one port. ``dtype`` ``None``: nothing. ``level``: of the dtype's rule,
    or of the threshold's if that is higher. ``from_qconfig``: a qconfig decided it.
    """

    constructor: FakeQuantizeConstructor
    dtype: PortDType | None = None
    rule: str = ""
    level: Level = Level.DEFAULT
    threshold: float | None = None
    threshold_rule: str = ""
    from_qconfig: bool = True
    dtype_frozen: bool = False
    threshold_frozen: bool = False

    def with_setting(self, setting: Setting) -> PortConfig:
        """The config after a later rule; what an earlier one froze stays."""
        config = self
        if setting.dtype is not None and not self.dtype_frozen:
            config = replace(
                config,
                dtype=setting.dtype,
                rule=setting.rule,
                level=setting.level,
                from_qconfig=False,
                dtype_frozen=setting.frozen,
            )
        if setting.threshold is not None and not self.threshold_frozen:
            config = replace(
                config,
                threshold=setting.threshold,
                threshold_rule=setting.rule,
                rule=config.rule if config.dtype is not None else setting.rule,
                level=max(config.level, setting.level),
                threshold_frozen=setting.frozen,
            )
        return config


@dataclass(slots=True)
class GroupConfig:
    """``output`` of the group; weights and inputs by member: ``ports[name, "input-0"]``.

    ``kept_float``: why the group stays float by configuration. ``qconfig``: what a rule or
    ``module.qconfig`` gave as a whole, ``None`` where only the reference did.
    """

    output: PortConfig
    ports: dict[tuple[str, str], PortConfig] = field(default_factory=dict)
    kept_float: str | None = None
    qconfig: QConfig | None = None


class Configurator:
    """Applies reference, templates and ``module.qconfig`` to one group after the other.

    ``used``: the rules that spoke to some port; ``spoken``: those about single operators or
    modules, and to which ports; ``settled``: those that still stand when all have spoken.
    """

    def __init__(self, rules: Rules, views: Sequence[OpView]) -> None:
        self._rules = rules
        self.templates = bound(rules.templates, views)
        self._grids: dict[int, QuantDType | FloatDType] = {}
        self.used: set[str] = set()
        self.spoken: dict[str, list[tuple[str, str]]] = {}
        self.settled: set[str] = set()

    def configure(self, group: Sequence[OpView]) -> GroupConfig:
        """What is asked for the members of one fused group (or one operator)."""
        reference, rule = self._rules.reference_qconfig, self._rules.reference_rule
        config = GroupConfig(self._port(reference, "output", rule, Level.DEFAULT))
        for view in group:
            for port in port_names(view):
                wanted = self._port(reference, port, rule, Level.DEFAULT)
                if port.startswith("input") and not view.is_gemm:
                    wanted = replace(wanted, dtype=None)
                config.ports[view.name, port] = wanted
        for template in self.templates:
            for setting in template.settings(group):
                self._apply(config, setting)
        self._apply_module_qconfigs(config, group)
        if config.output.rule == NO_RULE and group[0].takes_float:
            config.output = PortConfig(_DEFAULT_ACTIVATION, qint8, STUB_RULE, Level.GLOBAL)
        for asked in (config.output, *config.ports.values()):
            self.settled |= {asked.rule, asked.threshold_rule}
        if config.output.dtype is Float.OPERATOR:
            config.kept_float = f"kept float by {config.output.rule}"
        return config

    def _apply(self, config: GroupConfig, setting: Setting) -> None:
        self.used.add(setting.rule)
        if setting.level >= Level.PREFIX:
            self.spoken.setdefault(setting.rule, []).append((setting.name, setting.port))
        if setting.port == "output":
            config.qconfig = setting.qconfig or config.qconfig
            config.output = self._changed(config.output, setting)
            return
        key = (setting.name, setting.port)
        if key not in config.ports:
            raise QconfigError(f"{setting.rule}: {setting.name} has no port {setting.port!r}")
        config.ports[key] = self._changed(config.ports[key], setting)

    def _changed(self, port: PortConfig, setting: Setting) -> PortConfig:
        if setting.qconfig is None:
            return port.with_setting(setting)
        if port.dtype_frozen:
            return port
        return self._port(setting.qconfig, setting.port, setting.rule, setting.level)

    def _apply_module_qconfigs(self, config: GroupConfig, group: Sequence[OpView]) -> None:
        given = [view for view in group if view.module_qconfig is not UNSET]
        if not given:
            return
        nearest = max(given, key=lambda view: match(view.module_qconfig_path, view) or (0, 0))
        for view in given:
            where = f"{MODULE} of {view.module_qconfig_path or 'the model'}"
            if not isinstance(view.module_qconfig, QConfig):
                if view is nearest or view.is_gemm:
                    config.kept_float = f"{where} is None"
                continue
            level = _module_level(view)
            if view is nearest:
                config.qconfig = view.module_qconfig
                config.output = self._port(view.module_qconfig, "output", where, level)
            for port in port_names(view):
                config.ports[view.name, port] = self._port(view.module_qconfig, port, where, level)

    def _port(self, qconfig: QConfig, port: str, rule: str, level: Level) -> PortConfig:
        """A port as a qconfig has it; an absent input asks for nothing, others for float."""
        kind = port.partition("-")[0]
        own: FakeQuantizeConstructor | None = getattr(qconfig, kind)
        if own is not None:
            grid = self._grid(own, rule)
            # Where a template asks for integers over a FakeCast, there is an observer to take.
            constructor = own if isinstance(grid, QuantDType) else _DEFAULT_ACTIVATION
            return PortConfig(constructor, grid, rule, level)
        if kind == "weight":
            return PortConfig(weight_constructor(qint8), Float.PORT, rule, level)
        fallback = qconfig.output or qconfig.input or _DEFAULT_ACTIVATION
        return PortConfig(fallback, Float.PORT if kind == "output" else None, rule, level)

    def _grid(self, constructor: FakeQuantizeConstructor, rule: str) -> QuantDType | FloatDType:
        key = id(constructor)
        if key not in self._grids:
            built = constructor()
            if not isinstance(built, (FakeQuantize, FakeCast)):
                raise QconfigError(
                    f"{rule}: expected a constructor of FakeQuantize or FakeCast but "
                    f"{constructor!r} built a {type(built).__name__}"
                )
            self._grids[key] = built.dtype
        return self._grids[key]


def _module_level(view: OpView) -> Level:
    """How directly ``module.qconfig`` names an operator: a qconfig of the whole model says less
    about the inside of a softmax than one of that softmax's own part would.
    """
    if view.module_qconfig_path == view.name:
        return Level.EXACT
    return Level.PREFIX if view.module_qconfig_path else Level.WHOLE


_DEFAULT_ACTIVATION = FakeQuantize.with_args(observer=MinMaxObserver)
