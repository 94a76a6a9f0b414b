"""Where a model came from, kept on the model itself for the messages and reports about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

M = TypeVar("M")
_ATTRIBUTE = "qtune_origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """``model``: its name in reports. ``artefact``: the file it lies in. ``provenance``: what it
    was made of and with."""

    model: str
    artefact: str | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)


def mark(model: M, origin: Origin) -> M:
    """Remember ``origin`` on ``model``; return ``model``."""
    setattr(model, _ATTRIBUTE, origin)
    return model


def origin_of(model: Any, name: str | None = None) -> Origin:
    """What is known about ``model``; ``name`` overrides its name, default is its class's."""
    known = getattr(model, _ATTRIBUTE, None)
    if not isinstance(known, Origin):
        return Origin(name or type(model).__name__)
    return Origin(name or known.model, known.artefact, known.provenance)
