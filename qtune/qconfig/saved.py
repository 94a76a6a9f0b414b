"""``qconfig_dtypes.pt``: the dtypes of every operator of a prepared model, saved and read back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from qtune.errors import QconfigError
from qtune.qconfig.dtypes import Float, port_dtype
from qtune.qconfig.plan import OpView
from qtune.qconfig.rules import Level, Setting, input_ports, why_unmatched

DTYPES_FILE = "qconfig_dtypes.pt"
OPERATOR = "operator"
"""The key of an operator that stays float, instead of its ports."""

SavedDtypes = Mapping[str, Mapping[str, str]]
"""Operator -> port -> name of its dtype; see :class:`LoadFromFileTemplate`."""


@dataclass(frozen=True)
class LoadFromFileTemplate:
    """The dtypes of a model that was prepared before: what ``prepare`` saved as
    ``qconfig_dtypes.pt``, given by its path or by that of the run directory.

    Behind all other templates, a model prepared so has the same dtypes, on the same march and with
    the same ``module.qconfig``. Observers and fixed ranges are not in the file; those of the other
    templates stay. ``freeze`` protects the dtypes from later templates. What the file and the model
    don't share is reported.

    The file is a dict: operator -> ``{"output": ..., "weight": ..., "input-0": ...}``. An output of
    ``torch.float32`` is a high-precision one; a result that keeps the scale of its input, or has
    none, is not listed; ``{"operator": "float"}`` stays float.
    """

    path: str | os.PathLike[str]
    freeze: bool = False
    _dtypes: SavedDtypes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_dtypes", _read(Path(self.path)))

    @property
    def rule(self) -> str:
        """How the explanation calls it."""
        return f"LoadFromFileTemplate {Path(self.path).name}"

    def settings(self, group: Sequence[OpView]) -> Iterator[Setting]:
        """The saved dtypes of the group's members."""
        saved = {v.name: self._dtypes[v.name] for v in group if v.name in self._dtypes}
        if len(saved) < len(group):
            return
        if all(OPERATOR in ports for ports in saved.values()):
            yield self._setting(group[-1].name, "output", str(Float.OPERATOR))
            return
        outputs = [ports["output"] for ports in saved.values() if "output" in ports]
        if outputs:
            yield self._setting(group[-1].name, "output", outputs[-1])
        for view in group:
            ports = saved[view.name]
            names = ["weight"] if view.weight else []
            for port in (*names, *(f"input-{i}" for i in input_ports(view))):
                if port in ports and ports[port] != str(Float.PORT):
                    yield self._setting(view.name, port, ports[port])

    def unmatched(self, views: Sequence[OpView], used: frozenset[str]) -> list[str]:
        """Operators of the file that the model lacks, and the other way round."""
        known = {view.name for view in views}
        here = [
            f"{self.rule} {name!r}: {why_unmatched(name, views)}"
            for name in self._dtypes
            if name not in known
        ]
        return here + [
            f"{self.rule}: the file has no entry for {view.name}"
            for view in views
            if view.name not in self._dtypes
        ]

    def _setting(self, name: str, port: str, dtype: str) -> Setting:
        given = (
            Float.OPERATOR
            if dtype == str(Float.OPERATOR)
            else port_dtype(dtype, f"{self.rule}: {name} {port}")
        )
        return Setting(name, port, self.rule, Level.EXACT, given, frozen=self.freeze)


def _read(path: Path) -> SavedDtypes:
    file = path / DTYPES_FILE if path.is_dir() else path
    if not file.exists():
        raise QconfigError(f"LoadFromFileTemplate: {file} does not exist; prepare writes it")
    if file.suffix != ".pt":
        raise QconfigError(f"LoadFromFileTemplate: expected {DTYPES_FILE} but got {file}")
    found: Any = torch.load(file, weights_only=True)
    if not (isinstance(found, Mapping) and all(isinstance(v, Mapping) for v in found.values())):
        raise QconfigError(
            f"LoadFromFileTemplate: {file} holds no dtypes by operator and port but a "
            f"{type(found).__name__}"
        )
    return found
