"""Containers of tensors: taken apart into leaves, and built again by their own classes.

Names of leaves follow numerics.md section 5, "output names": ``""`` for one tensor, ``0``, ``1``
for a sequence, the keys of a dict, namedtuple or dataclass, nested with ``-``; ``None`` is skipped.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


class Kind(enum.Enum):
    """How a container is taken apart and built."""

    LEAF = "leaf"
    NONE = "None"
    SEQUENCE = "sequence"
    FIELDS = "tuple with named fields"
    MAPPING = "mapping"
    DATACLASS = "dataclass"


@dataclass(frozen=True, slots=True)
class Spec:
    """The structure of a value without its leaves. Picklable and comparable.

    ``cls`` is the container's class, ``keys`` its keys, field names or indices, ``children`` one
    spec for each key.
    """

    kind: Kind
    cls: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Spec, ...] = ()

    def __str__(self) -> str:
        if self.kind is Kind.LEAF:
            return "*"
        if self.kind is Kind.NONE or self.cls is None:
            return "None"
        named = self.kind is not Kind.SEQUENCE
        pairs = zip(self.keys, self.children, strict=True)
        inside = ", ".join(f"{key}: {child}" if named else str(child) for key, child in pairs)
        return f"{self.cls.__name__}({inside})"


LEAF = Spec(Kind.LEAF)
NONE = Spec(Kind.NONE)


def flatten(value: Any) -> tuple[list[Any], Spec]:
    """Leaves of ``value`` in order, and its structure. Everything that is no container is a leaf.

    >>> flatten({"boxes": 1, "aux": (2, None)})[0]
    [1, 2]
    """
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves)


def unflatten(leaves: Sequence[Any], spec: Spec) -> Any:
    """Build the value again; the opposite of :func:`flatten`."""
    return _build(spec, iter(leaves))


def leaf_names(spec: Spec) -> list[str]:
    """The dash names of the leaves, in the order of :func:`flatten`."""
    return list(_names(spec, ()))


def flatten_named(value: Any) -> list[tuple[str, Any]]:
    """Leaves with their dash names.

    >>> flatten_named({"boxes": 1, "aux": (2, None)})
    [('boxes', 1), ('aux-0', 2)]
    """
    leaves, spec = flatten(value)
    return list(zip(leaf_names(spec), leaves, strict=True))


def _flatten(value: Any, leaves: list[Any]) -> Spec:
    if value is None:
        return NONE
    kind = _kind(value)
    if kind is Kind.LEAF:
        leaves.append(value)
        return LEAF
    keys, items = _items(value, kind)
    return Spec(kind, type(value), keys, tuple(_flatten(item, leaves) for item in items))


def _kind(value: Any) -> Kind:
    if isinstance(value, torch.Tensor):
        return Kind.LEAF
    if isinstance(value, Mapping):
        return Kind.MAPPING
    if isinstance(value, tuple):
        return Kind.FIELDS if field_names(type(value)) else Kind.SEQUENCE
    if isinstance(value, list):
        return Kind.SEQUENCE
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return Kind.DATACLASS
    return Kind.LEAF


def field_names(cls: type) -> tuple[str, ...]:
    """Names of the fields of a namedtuple or of torch's result tuples; empty for plain tuples."""
    names = getattr(cls, "_fields", None)
    if names is None and hasattr(cls, "n_sequence_fields"):
        names = getattr(cls, "__match_args__", None)
    return tuple(names or ())


def _items(value: Any, kind: Kind) -> tuple[tuple[Any, ...], list[Any]]:
    if kind is Kind.MAPPING:
        return tuple(value.keys()), [value[key] for key in value]
    if kind is Kind.DATACLASS:
        # A field that was never set (init=False) is no part of the value.
        names = tuple(f.name for f in dataclasses.fields(value) if hasattr(value, f.name))
        return names, [getattr(value, name) for name in names]
    items = list(tuple.__iter__(value) if isinstance(value, tuple) else value)
    names = field_names(type(value)) if kind is Kind.FIELDS else ()
    return names or tuple(range(len(items))), items


def _build(spec: Spec, leaves: Iterator[Any]) -> Any:
    if spec.kind is Kind.LEAF:
        return next(leaves)
    if spec.kind is Kind.NONE or spec.cls is None:
        return None
    children = [_build(child, leaves) for child in spec.children]
    if spec.kind is Kind.MAPPING:
        return _build_mapping(spec.cls, dict(zip(spec.keys, children, strict=True)))
    if spec.kind is Kind.DATACLASS:
        return _build_dataclass(spec.cls, dict(zip(spec.keys, children, strict=True)))
    cls: Any = spec.cls
    return cls(*children) if hasattr(cls, "_fields") else cls(children)


def _build_mapping(cls: Any, items: dict[Any, Any]) -> Any:
    if cls is dict:
        return items
    if hasattr(cls, "__dataclass_fields__"):  # ModelOutput-like: a mapping keyed by its fields
        return cls(**items)
    if issubclass(cls, defaultdict):
        return cls(None, items)
    return cls(items)


def _build_dataclass(cls: Any, items: dict[str, Any]) -> Any:
    # Past __init__ and __post_init__: the values are final, and the class may be frozen.
    value: Any = object.__new__(cls)
    for name, item in items.items():
        object.__setattr__(value, name, item)
    return value


def _names(spec: Spec, path: tuple[str, ...]) -> Iterator[str]:
    if spec.kind is Kind.LEAF:
        yield "-".join(path)
    for key, child in zip(spec.keys, spec.children, strict=True):
        yield from _names(child, (*path, str(key)))
