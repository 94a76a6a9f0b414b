"""QConfigs by the names or classes of operators and modules: the rules of the older ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qtune.errors import QconfigError
from qtune.qconfig.dtypes import Float
from qtune.qconfig.plan import OpView
from qtune.qconfig.qconfig import QConfig
from qtune.qconfig.rules import Level, Setting, match, port_names, why_unmatched

Fit = tuple[Level, int]
"""How well a rule fits an operator; the larger one wins."""

Found = tuple[Fit, str, QConfig | None]
"""A rule that fits an operator: how well, its name, its qconfig."""


@dataclass(frozen=True)
class QconfigsByName:
    """Names or prefixes of operators and modules -> the qconfig of all their ports.

    ``None`` keeps the operators float. The most specific name wins. ``source`` begins the rules'
    names in messages.
    """

    qconfigs: Mapping[str, QConfig | None]
    source: str

    def __post_init__(self) -> None:
        for key, value in self.qconfigs.items():
            checked(value, f"{self.source} {key!r}")
            if not isinstance(key, str):
                raise QconfigError(f"{self.source}: a name must be a string but got {key!r}")

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The qconfig of the most specific name, for every port of the group's members."""
        return by_best_fit(group, self._fits)

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Names that fit no operator, or never best."""
        return [
            f"{self._rule(key)}: {why_unmatched(key, views)}"
            for key in self.qconfigs
            if self._rule(key) not in used
        ]

    def _fits(self, view: OpView) -> Iterator[Found]:
        for key, qconfig in self.qconfigs.items():
            fit = match(key, view)
            if fit is not None:
                level = Level.WHOLE if key == "" else fit[0]
                yield (level, fit[1]), self._rule(key), qconfig

    def _rule(self, key: str) -> str:
        return f"{self.source} {key!r}"


@dataclass(frozen=True)
class QconfigsByType:
    """Module classes -> the qconfig of all operators in modules of that class or a subclass.

    The innermost module decides, then the class given first.
    """

    qconfigs: Sequence[tuple[type, QConfig | None]]
    source: str

    def __post_init__(self) -> None:
        for key, value in self.qconfigs:
            if not isinstance(key, type):
                raise QconfigError(f"{self.source}: expected a module class but got {key!r}")
            checked(value, f"{self.source} {key.__name__}")

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The qconfig of the innermost module of a named class."""
        return by_best_fit(group, self._fits)

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Classes of which the model has no module with an operator in it."""
        return [
            f"{self._rule(key)}: no operator lies in a module of this class"
            for key, _ in self.qconfigs
            if self._rule(key) not in used and not any(_depth(key, view) for view in views)
        ]

    def _fits(self, view: OpView) -> Iterator[Found]:
        for key, qconfig in self.qconfigs:
            depth = _depth(key, view)
            if depth:
                yield (Level.WHOLE, depth), self._rule(key), qconfig

    def _rule(self, key: type) -> str:
        return f"{self.source} {key.__name__}"


def checked(value: object, where: str) -> QConfig | None:
    """``value`` if it is a ``QConfig`` or ``None``; raise ``QconfigError`` otherwise."""
    if value is None or isinstance(value, QConfig):
        return value
    raise QconfigError(
        f"{where}: expected a QConfig or None but got {value!r} (type={type(value).__name__})"
    )


def by_best_fit(
    group: Sequence[OpView],
    fits: Callable[[OpView], Iterable[Found]],
) -> Iterator[Setting]:
    """Settings of each member's best rule; the output's is the best over the group.

    Of equal ones the last member's counts; a GEMM without qconfig keeps the group float.
    """
    best = {view.name: max(fits(view), key=lambda f: f[0], default=None) for view in group}
    outputs = [best[view.name] for view in reversed(group)]
    floats = [best[view.name] for view in group if view.is_gemm and _is_float(best[view.name])]
    found = [output for output in (floats or outputs) if output is not None]
    if not found:
        return
    (level, _), rule, qconfig = max(found, key=lambda f: f[0])
    yield _setting(group[-1].name, "output", rule, level, qconfig)
    for view in group:
        own = best[view.name]
        if own is not None and own[2] is not None:
            for port in port_names(view):
                yield _setting(view.name, port, own[1], own[0][0], own[2])


def _is_float(found: Found | None) -> bool:
    return found is not None and found[2] is None


def _setting(name: str, port: str, rule: str, level: Level, qconfig: QConfig | None) -> Setting:
    if qconfig is None:
        return Setting(name, port, rule, level, Float.OPERATOR)
    return Setting(name, port, rule, level, qconfig=qconfig)


def _depth(cls: type, view: OpView) -> int:
    """1 + the depth of the innermost module of the class around the operator; 0: there is none."""
    for place, (_, found) in enumerate(view.modules):
        if issubclass(found, cls):
            return len(view.modules) - place
    return 0
