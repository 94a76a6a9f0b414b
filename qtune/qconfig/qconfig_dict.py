"""``qconfig_dict``, the oldest way: qconfigs for everything, by module class, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qtune.errors import QconfigError
from qtune.qconfig.named import QconfigsByName, QconfigsByType, checked
from qtune.qconfig.plan import OpView
from qtune.qconfig.qconfig import QConfig
from qtune.qconfig.rules import (
    NO_RULE,
    Level,
    Rules,
    Setting,
    Template,
    bound,
    match,
    port_names,
    why_unmatched,
)

KEYS = ("", "module_type", "module_name")
_SOURCE = "qconfig_dict"


@dataclass(frozen=True)
class SetterByName:
    """A setter for the operators under one name: its reference qconfig and its templates."""

    key: str
    rules: Rules
    source: str

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """What the setter says, where the name fits some member."""
        if not any(match(self.key, view) for view in group):
            return
        if not self.rules.is_partial:
            yield from self._reference(group)
        for template in self.rules.templates:
            yield from template.settings(group)

    def bind(self, views: Sequence[OpView]) -> SetterByName:
        """The same with the setter's templates after a look at all operators."""
        return replace(
            self, rules=replace(self.rules, templates=bound(self.rules.templates, views))
        )

    def _reference(self, group: Sequence[OpView]) -> Iterator[Setting]:
        rule, own = f"{self.source} {self.key!r}", self.rules.reference_qconfig
        yield Setting(group[-1].name, "output", rule, Level.GLOBAL, qconfig=own)
        for view in group:
            for port in port_names(view):
                yield Setting(view.name, port, rule, Level.GLOBAL, qconfig=own)

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """The name, if no operator has it; rules of the setter that decided nothing."""
        if any(match(self.key, view) for view in views):
            return [text for t in self.rules.templates for text in t.unmatched(views, used)]
        return [f"{self.source} {self.key!r}: {why_unmatched(self.key, views)}"]


def rules_of_dict(given: Mapping[str, Any], read: Callable[[Any], Rules]) -> Rules:
    """The rules of a ``qconfig_dict``: ``{"": ..., "module_type": [(class, ...)], "module_name":
    [(name, ...)]}``.

    A value is a ``QConfig`` or ``None``; of ``""`` and ``module_name`` also a setter, which
    ``read`` understands. The lists may be dicts. What no key names stays float. Raises
    ``QconfigError`` for other forms.
    """
    unknown = set(given) - set(KEYS)
    if unknown:
        raise QconfigError(
            f"{_SOURCE}: the keys are {', '.join(map(repr, KEYS))}, got {sorted(unknown)}; names "
            'of operators belong under "module_name"'
        )
    base = _base(given, read)
    types = tuple(_pairs(given.get("module_type"), "module_type"))
    templates: list[Template] = []
    if types:
        kept = [(key, checked(value, f"{_SOURCE} module_type {key!r}")) for key, value in types]
        templates.append(QconfigsByType(kept, f"{_SOURCE} module_type"))
    templates.extend(_by_name(given.get("module_name"), read))
    return Rules(
        base.reference_qconfig,
        (*base.templates, *templates),
        base.reference_rule,
        base.advise_outputs,
        base.strict,
    )


def _base(given: Mapping[str, Any], read: Callable[[Any], Rules]) -> Rules:
    own = given.get("")
    if own is None:
        return Rules(QConfig(), reference_rule=NO_RULE)
    if isinstance(own, QConfig):
        everything = QconfigsByName({"": own}, _SOURCE)
        return Rules(QConfig(), (everything,), NO_RULE)
    return read(own)


def _by_name(given: Any, read: Callable[[Any], Rules]) -> Iterator[Template]:
    """Runs of qconfigs as one template each, so that in it the most specific name wins."""
    pairs = tuple(_pairs(given, "module_name"))
    source = f"{_SOURCE} module_name"
    setters = [(key, value) for key, value in pairs if not isinstance(value, QConfig | None)]
    for key, value in sorted(setters, key=lambda pair: pair[0].count(".")):
        yield SetterByName(key, read(value), source)
    qconfigs = {key: value for key, value in pairs if isinstance(value, QConfig | None)}
    if qconfigs:
        yield QconfigsByName(qconfigs, source)


def _pairs(given: Any, key: str) -> Iterator[tuple[Any, Any]]:
    items = given.items() if isinstance(given, Mapping) else given or ()
    if not isinstance(items, Sequence) and not isinstance(given, Mapping):
        raise QconfigError(f"{_SOURCE}[{key!r}] must be a list of pairs or a dict, got {given!r}")
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise QconfigError(f"{_SOURCE}[{key!r}]: expected pairs (key, qconfig), got {item!r}")
        yield item[0], item[1]
