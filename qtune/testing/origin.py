"""Where a model came from, kept on the model itself for the messages and reports about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from qtune.errors import ArgumentError, kind_of
from qtune.testing.result import LayerResult

M = TypeVar("M")
_ATTRIBUTE = "qtune_origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """``model``: its name in reports. ``artefact``: the file it lies in. ``provenance``: what it
    was made of and with. ``sources``: ``file.py:12`` by operator."""

    model: str
    artefact: str | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def located(self, layers: Sequence[LayerResult]) -> list[LayerResult]:
        """``layers`` with the line of the model's code that each operator or port comes from."""
        return [replace(layer, source=layer.source or self._source(layer.name)) for layer in layers]

    def _source(self, name: str) -> str:
        operator = name if name in self.sources else name.rpartition(" ")[0] or name
        reused, _, number = operator.rpartition("_")  # in HBIR a second call of ``r`` is ``r_1``
        if operator not in self.sources and number.isdecimal():
            operator = reused
        return self.sources.get(operator, "")


def mark(model: M, origin: Origin) -> M:
    """Remember ``origin`` on ``model``; return ``model``."""
    setattr(model, _ATTRIBUTE, origin)
    return model


def origin_of(model: Any, name: str | None = None) -> Origin:
    """What is known about ``model``; ``name`` overrides its name, default is its class's."""
    known = getattr(model, _ATTRIBUTE, None)
    if not isinstance(known, Origin):
        return Origin(called(name, type(model).__name__), sources=sources_of(model))
    return replace(known, model=called(name, known.model))


def called(name: Any, default: str) -> str:
    """The argument ``name`` of an assertion, or what takes its place where there is none."""
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"name stands for the model's: it is a text, got {kind_of(name)}")
    return name or default


def sources_of(model: Any) -> dict[str, str]:
    """The lines of code that call each operator of a prepared model; empty for any other."""
    operators = getattr(model, "operators", None)
    if not callable(operators):
        return {}
    found: dict[str, dict[str, None]] = {}
    for node, op in operators():
        source = str(node.meta.get("source") or "")
        found.setdefault(op.name, {}).update({source: None} if source else {})
    for item in getattr(model, "float_ops", ()):
        found.setdefault(item.name, {}).update({item.source: None} if item.source else {})
    return {name: ", ".join(lines) for name, lines in found.items()}
