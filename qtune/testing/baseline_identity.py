"""What a baseline is about (its identity), and what it was measured with (its environment)."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from qtune.errors import ArgumentError, kind_of
from qtune.testing.baseline_file import SCHEMA
from qtune.testing.origin import Origin
from qtune.version import __version__

if TYPE_CHECKING:
    from qtune.hbir.module import HbirModule

IDENTITY = ("march", "qconfig", "method", "qat_mode", "consistency_level", "calibration")
"""Facts of a provenance that make values comparable. Weights are not among them: that they changed
is what a baseline is there to show."""
ENVIRONMENT = ("qtune", "python", "numpy", "torch", "cpu_capability", "threads")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGITS = 16


def provenance_of(identity: Any) -> Mapping[str, Any]:
    """The facts behind ``identity``: Stages, a model that comes from them, or a mapping."""
    if identity is None:
        return {}
    if isinstance(identity, Mapping):
        return {str(key): value for key, value in identity.items()}
    known = getattr(identity, "provenance", None)
    if known is None:
        known = getattr(getattr(identity, "qtune_origin", None), "provenance", None)
    if not isinstance(known, Mapping):
        raise ArgumentError(
            "identity: expected Stages, a model that comes from them, or a mapping of names to "
            f"values, but got {kind_of(identity)}"
        )
    return known


def identity_of(identity: Any) -> dict[str, str]:
    """The fields that must be equal; of a mapping all but those of the environment."""
    facts = provenance_of(identity)
    names = set(facts) - set(ENVIRONMENT) if isinstance(identity, Mapping) else IDENTITY
    if isinstance(identity, Mapping) and "content" in facts:  # a provenance, passed as it is
        names = IDENTITY
    return {name: short(facts[name]) for name in sorted(names) if name in facts}


def origin_about(identity: Any, model: str | None, default: str) -> Origin:
    """What a result about ``identity`` says of it; ``default``: its name, if nobody knows one."""
    known = getattr(identity, "qtune_origin", None)
    names = (model, getattr(known, "model", None), getattr(identity, "name", None))
    facts = {
        name: value if isinstance(value, str | int | float) else str(value)
        for name, value in provenance_of(identity).items()
    }
    label = next((text for text in names if text and isinstance(text, str)), default)
    return Origin(label, getattr(known, "artefact", None), facts)


def environment_of(identity: Any) -> dict[str, str]:
    """Versions, and what the provenance says about CPU and threads."""
    facts = provenance_of(identity)
    return {**_versions()} | {name: str(facts[name]) for name in ENVIRONMENT if name in facts}


def identity_differences(
    now: Mapping[str, str], then: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """``(field, stored, now)`` of each that differs; the schema of an older file is one of them."""
    now, then = dict(now), dict(then)
    if "schema" in then:
        now["schema"] = str(SCHEMA)
    return [
        (name, then.get(name, "none"), now.get(name, "none"))
        for name in sorted(set(now) | set(then))
        if now.get(name) != then.get(name)
    ]


def environment_differences(now: Mapping[str, str], then: Mapping[str, str]) -> str:
    """``torch 2.12.0 -> 2.13.0, threads 2 -> 1``: of fields that both have."""
    return ", ".join(
        f"{name} {then[name]} -> {now[name]}"
        for name in sorted(set(now) & set(then))
        if now[name] != then[name]
    )


def scales_digest(module: HbirModule) -> str:
    """sha256 over the scale of every tensor of an HBIR module, by name in order of execution."""
    sha = hashlib.sha256()
    for operation in module[0].operations:
        operands = (*(item for item in operation.inputs if item is not None), *operation.outputs)
        for operand in operands:
            sha.update(f"{operand.name} {operand.scale!r}\n".encode())
    return sha.hexdigest()


@functools.cache
def _versions() -> Mapping[str, str]:
    found = {"qtune": __version__, "python": platform.python_version()}
    for name in ("numpy", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # pragma: no cover - qtune needs both
            continue
    return found


def short(value: Any) -> str:
    """A digest by its first digits, anything else as text."""
    text = str(value)
    return text[:_DIGITS] if _DIGEST.fullmatch(text) else text
