"""What ``prepare`` takes as ``qconfig_setter``, brought to one form: :class:`Rules`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from qtune.errors import QconfigError
from qtune.qconfig.old_setters import OldSetter
from qtune.qconfig.qconfig import QConfig
from qtune.qconfig.qconfig_dict import rules_of_dict
from qtune.qconfig.rules import NO_RULE, Rules, Template
from qtune.qconfig.sensitivity import PortRaiser
from qtune.qconfig.setter import QconfigSetter, default_setter

AnySetter = (
    QconfigSetter
    | OldSetter
    | PortRaiser
    | Sequence[QconfigSetter | OldSetter | PortRaiser]
    | Mapping[str, Any]
    | Rules
    | None
)


def rules_of(setter: AnySetter) -> Rules:
    """The rules of any setter.

    ``None``: everything qint8. A ``QconfigSetter``; an old setter; a tuple of setters, of which the
    first has the highest priority; a ``qconfig_dict``. What raises ports (``SensitivityTemplate``,
    the result of a search) speaks for these; alone, everything else is as with ``None``. Raises
    ``QconfigError`` for anything else.
    """
    if setter is None:
        return rules_of(default_setter())
    if isinstance(setter, Rules):
        return setter
    if isinstance(setter, PortRaiser):
        return _stacked([setter, default_setter()])
    if isinstance(setter, Mapping):
        return rules_of_dict(setter, rules_of)
    if isinstance(setter, (tuple, list)):
        return _stacked(setter)
    return _stacked([setter])


def _stacked(setters: Sequence[Any]) -> Rules:
    """The first setter wins: it comes last among templates, of which the last wins.

    Only the first setter that speaks for everything is heard; those behind it can't decide.
    """
    if not setters:
        raise QconfigError("qconfig_setter: an empty tuple has no setter")
    templates: list[Template] = []
    for place, setter in enumerate(setters):
        rules = _one(setter)
        templates = [*rules.templates, *templates]
        if not rules.is_partial:
            behind = tuple(
                f"{other!r}: {setter!r} before it decides everything"
                for other in setters[place + 1 :]
            )
            return Rules(
                rules.reference_qconfig,
                tuple(templates),
                rules.reference_rule,
                rules.advise_outputs,
                any(getattr(s, "strict", False) for s in setters),
                behind,
            )
    return Rules(QConfig(), tuple(templates), NO_RULE)


def _one(setter: Any) -> Rules:
    if isinstance(setter, QconfigSetter):
        return Rules(setter.reference_qconfig, tuple(setter.templates), strict=setter.strict)
    if isinstance(setter, PortRaiser):
        return Rules(QConfig(), (setter,), NO_RULE)
    if isinstance(setter, OldSetter):
        reference = setter.reference
        return Rules(
            QConfig() if reference is None else reference,
            setter.templates,
            NO_RULE if reference is None else setter.name,
            advise_outputs=reference is not None,
        )
    if isinstance(setter, QConfig):
        raise QconfigError(
            "qconfig_setter: a QConfig is no setter; write QconfigSetter(qconfig), "
            'qconfig_dict={"": qconfig} or model.qconfig = qconfig'
        )
    if hasattr(setter, "settings") and hasattr(setter, "unmatched"):
        raise QconfigError(
            f"qconfig_setter: {type(setter).__name__} is a template, no setter; write "
            "QconfigSetter(get_qconfig(), [templates])"
        )
    raise QconfigError(
        "qconfig_setter must be a QconfigSetter, a setter of qtune.quantization.qconfig_template, "
        f"a tuple of setters or a qconfig_dict, but got {reprlib.repr(setter)} "
        f"(type={type(setter).__name__})"
    )
