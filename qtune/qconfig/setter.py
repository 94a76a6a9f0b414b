"""``QconfigSetter``, and ``module.qconfig``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from qtune.dtype import qint8
from qtune.errors import QconfigError
from qtune.qconfig.plan import UNSET, Unset
from qtune.qconfig.qconfig import QConfig, get_qconfig
from qtune.qconfig.rules import Template
from qtune.qconfig.templates import ConvDtypeTemplate, MatmulDtypeTemplate, ModuleNameTemplate


@dataclass(frozen=True)
class QconfigSetter:
    """A reference qconfig (observers, default dtypes) and templates; a later template wins.

    A ``ModuleNameTemplate`` with the key ``""`` must come first: later it would undo the others.
    ``strict``: a rule that decides nothing, or a dtype that is not given, is an error of
    ``prepare`` (it has the same argument).
    """

    reference_qconfig: QConfig
    templates: Sequence[Template] = ()
    strict: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.reference_qconfig, QConfig):
            raise QconfigError(
                "QconfigSetter: reference_qconfig must be a QConfig, for example get_qconfig(), "
                f"but got {self.reference_qconfig!r}"
            )
        for place, template in enumerate(self.templates):
            if not (hasattr(template, "settings") and hasattr(template, "unmatched")):
                raise QconfigError(f"QconfigSetter: {template!r} is no template")
            if place and isinstance(template, ModuleNameTemplate) and template.is_global:
                raise QconfigError(
                    'QconfigSetter: the ModuleNameTemplate with the key "" must be the first '
                    f"template, here it is number {place + 1}"
                )
        object.__setattr__(self, "templates", tuple(self.templates))


def default_setter() -> QconfigSetter:
    """What ``prepare`` uses without a setter: everything qint8."""
    templates = (ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate())
    return QconfigSetter(get_qconfig(), templates)


def find_qconfig(model: nn.Module, path: str) -> tuple[QConfig | None | Unset, str]:
    """The ``qconfig`` attribute nearest to the module at ``path``, and the module that has it.

    Looks at the module, then at the modules around it; ``(UNSET, "")`` where none has one.
    A ``path`` that does not exist stands for its nearest existing parent.
    """
    modules = dict(modules_around(model, path))
    for owner in sorted(modules, key=len, reverse=True):
        found = getattr(modules[owner], "qconfig", UNSET)
        if found is UNSET:
            continue
        if found is not None and not isinstance(found, QConfig):
            raise QconfigError(
                f"{owner or 'the model'}.qconfig: expected a qtune QConfig or None but got "
                f"{found!r} (type={type(found).__name__})"
            )
        return found, owner
    return UNSET, ""


def modules_around(model: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """The modules on the way from the model to ``path``, the model itself first."""
    found = [("", model)]
    module = model
    parts = path.split(".") if path else []
    for depth, part in enumerate(parts, start=1):
        child = module._modules.get(part)
        if child is None:
            break
        module = child
        found.append((".".join(parts[:depth]), module))
    return found
