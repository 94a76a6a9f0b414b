"""The kinds of checks: one for each assertion of ``qtune.testing``, with its arguments as keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import qtune.testing
from qtune.testing.gatefile.signature import Parameter, Signature, signature

_PREFIX = "assert_"
_OWN = {"baseline": ("qtune.testing.gatefile.metrics", "check_baseline")}
"""Kinds that are no assertion: where their function is."""
_LOOKS_AT = frozenset({"no_saturation", "scale_in"})
"""Kinds that look at the calibrated model, where the rule of ``Kind.default_stages`` would say
another."""
_PAIR = ("float", "quantized_bc")
_STEPS = "max_qscale_diff"
INPUTS = "inputs"
STORED = "stored"
NOT_IN_FILES = frozenset({"name", STORED})
"""Arguments that whoever runs the file gives."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``kind = "consistency"`` is ``qtune.testing.assert_consistency``."""

    name: str
    module: str
    function: str

    @property
    def signature(self) -> Signature:
        """What the function takes."""
        return signature(self.module, self.function)

    @property
    def subjects(self) -> tuple[Parameter, ...]:
        """The arguments that are stages of the model."""
        return tuple(p for p in self.signature.parameters if p.required and p.stages)

    @property
    def stage_keys(self) -> tuple[str, ...]:
        """The keys that name these stages."""
        return ("stage",) if len(self.subjects) == 1 else ("from", "to")

    def default_stages(self, given: Mapping[str, object], *, onnx: bool = False) -> tuple[str, ...]:
        """The stages where the file names none.

        Two: float and quantized_bc; for ``max_qscale_diff`` alone qat_bc and quantized_bc, since
        steps tell an operator's own deviation. One: the last that fits, of torch stages calib, of
        an ONNX model calibrated.
        """
        calibrated = "calibrated" if onnx else "calib"
        if self.name in _LOOKS_AT:
            return (calibrated,)
        if len(self.subjects) == 1:
            allowed = self.subjects[0].stages_of(onnx=onnx)
            preferred = ("quantized_bc", "hbm", calibrated, *allowed)
            return (next(stage for stage in preferred if stage in allowed),)
        limits = {key for key in given if key.startswith(("max_", "min_"))}
        return ("qat_bc", "quantized_bc") if limits == {_STEPS} else _PAIR

    @property
    def arguments(self) -> dict[str, Parameter]:
        """The arguments that a file may give, by name, inputs first."""
        subjects = {p.name for p in self.subjects} | NOT_IN_FILES
        listed = [p for p in self.signature.parameters if p.name not in subjects and p.expected]
        listed.sort(key=lambda p: p.name != INPUTS)
        return {p.name: p for p in listed}

    @property
    def stores(self) -> bool:
        """Whether it compares with stored values."""
        return any(p.name == STORED for p in self.signature.parameters)

    @property
    def per_layer(self) -> bool:
        """Whether it can be one item for each layer."""
        return "per_layer" in self.arguments


@lru_cache
def kinds() -> Mapping[str, Kind]:
    """Every kind by name: the assertions that look at stages of a model."""
    names = [name for name in qtune.testing.__all__ if name.startswith(_PREFIX)]
    found = {
        name.removeprefix(_PREFIX): Kind(
            name.removeprefix(_PREFIX), f"qtune.testing.{qtune.testing._HOMES[name]}", name
        )
        for name in names
    }
    found |= {name: Kind(name, module, function) for name, (module, function) in _OWN.items()}
    return {name: kind for name, kind in sorted(found.items()) if kind.subjects}


def markdown() -> str:
    """The table of all kinds in docs/gate-files.md; keys that must be given are bold."""
    lines = ["| kind | looks at | keys |", "| --- | --- | --- |"]
    for kind in kinds().values():
        keys = [
            f"**`{p.name}`**" if p.required and p.name != INPUTS else f"`{p.name}`"
            for p in kind.arguments.values()
        ]
        stages = ", ".join(f"`{stage}`" for stage in kind.default_stages({}))
        lines.append(f"| `{kind.name}` | {stages} | {', '.join(keys)} |")
    return "\n".join(lines)
