"""The qconfig setter that the options ask for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qtune.cli.outcome import InputError
from qtune.cli.sources import load_setter
from qtune.dtype import qint16
from qtune.errors import kind_of
from qtune.qconfig.plan import OpView
from qtune.qconfig.qconfig import QConfig, get_qconfig
from qtune.qconfig.rules import Setting, match, why_unmatched
from qtune.qconfig.saved import LoadFromFileTemplate
from qtune.qconfig.sensitivity import RaisedPorts, SensitiveOps
from qtune.qconfig.setter import QconfigSetter, default_setter
from qtune.quantizers.observers import OBSERVERS

_NEED_ARGUMENTS = ("fixed_scale", "clip")


@dataclass(frozen=True)
class RaisedByName:
    """The results of an operator, or of all in a module, become qint16, also where GEMMs read them.

    ``name``: as in ``ModuleNameTemplate``.
    """

    name: str

    def bind(self, views: Sequence[OpView]) -> RaisedPorts:
        """The rule for this model; ``InputError`` if nothing is called so."""
        entries = tuple((view.name, "output") for view in views if match(self.name, view))
        if not entries:
            raise InputError(f"--int16 {self.name}: {why_unmatched(self.name, views)}")
        return SensitiveOps(entries, f"--int16 {self.name}").raised(qint16).bind(views)

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The settings of one group looked at alone."""
        return self.bind(group).settings(group)

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Nothing: ``bind`` refuses a name that fits nothing."""
        return []


def setter_of(args: argparse.Namespace) -> Any:
    """What ``--qconfig``, ``--observer``, ``--int16`` and ``--dtypes`` say, for ``prepare``."""
    later: list[Any] = [RaisedByName(name) for name in args.int16]
    if args.dtypes is not None:
        later.append(LoadFromFileTemplate(args.dtypes))
    if args.qconfig is None:
        return QconfigSetter(_reference(args.observer), [*default_setter().templates, *later])
    if args.observer is not None:
        raise InputError("--observer: --qconfig says already which observers to use")
    given = load_setter(args.qconfig, "--qconfig")
    if not later:
        return given
    if not isinstance(given, QconfigSetter):
        raise InputError(
            "--int16 and --dtypes need a QconfigSetter to add to, and --qconfig gives "
            f"{kind_of(given)}; put them into it"
        )
    templates = [*given.templates, *later]
    return QconfigSetter(given.reference_qconfig, templates, strict=given.strict)


def _reference(observer: str | None) -> QConfig:
    if observer is None:
        return get_qconfig()
    known = [name for name in OBSERVERS if name not in _NEED_ARGUMENTS]
    if observer not in known:
        raise InputError(f"--observer: unknown {observer!r}; choose one of: {', '.join(known)}")
    return get_qconfig(observer=OBSERVERS[observer])
