"""The containers around inputs and outputs, as JSON: what a ``.bc`` file keeps of a pytree.

A spec is one of ``{"leaf": n}`` (the n-th tensor), ``{"const": value}`` (None, bool, int, float,
str), ``{"list": [...]}``, ``{"tuple": [...]}``, ``{"dict": [[key, spec], ...]}`` (beside it
``"class": "module:Class"`` for another mapping, such as an OrderedDict) and
``{"object": "module:Class", "fields": [[name, spec], ...]}`` for namedtuples and dataclasses.
Nothing is ever unpickled or imported; a class that is not loaded yet comes back as a dict.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qtune.errors import ArgumentError

Spec = dict[str, Any]
_CONSTANTS = (type(None), bool, int, float, str)


def describe(value: Any, is_leaf: Callable[[Any], bool]) -> tuple[Spec, list[Any]]:
    """Return the spec of ``value`` and its leaves in order."""
    leaves: list[Any] = []
    return _describe(value, is_leaf, leaves), leaves


def renumber(spec: Any, places: Sequence[int]) -> Any:
    """The spec with leaf ``n`` as leaf ``places[n]``."""
    if isinstance(spec, dict):
        return {
            key: places[item] if key == "leaf" else renumber(item, places)
            for key, item in spec.items()
        }
    return [renumber(item, places) for item in spec] if isinstance(spec, list) else spec


def _describe(value: Any, is_leaf: Callable[[Any], bool], leaves: list[Any]) -> Spec:
    if is_leaf(value):
        leaves.append(value)
        return {"leaf": len(leaves) - 1}
    if isinstance(value, _CONSTANTS):
        return {"const": value}
    fields = object_fields(value)
    if fields is not None:
        return {
            "object": _path(type(value)),
            "fields": [[name, _describe(item, is_leaf, leaves)] for name, item in fields],
        }
    if isinstance(value, Mapping):
        items = [[key, _describe(item, is_leaf, leaves)] for key, item in value.items()]
        return {"dict": items} | ({} if type(value) is dict else {"class": _path(type(value))})
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_describe(item, is_leaf, leaves) for item in value]}
    raise ArgumentError(
        f"inputs and outputs may hold tensors, numbers, strings, None and list, tuple, dict, "
        f"namedtuple or dataclass around them, but got {type(value).__name__}"
    )


def object_fields(value: Any) -> list[tuple[str, Any]] | None:
    """Fields of a namedtuple or a dataclass, else ``None``."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def rebuild(spec: Spec, leaves: Sequence[Any]) -> Any:
    """Put ``leaves`` into the containers of ``spec``."""
    ((kind, content), *_) = spec.items()
    if kind == "leaf":
        return leaves[content]
    if kind == "const":
        return content
    if kind == "list":
        return [rebuild(item, leaves) for item in content]
    if kind == "tuple":
        return tuple(rebuild(item, leaves) for item in content)
    if kind == "dict":
        items = {key: rebuild(item, leaves) for key, item in content}
        return _mapping(spec["class"], items) if "class" in spec else items
    values = {name: rebuild(item, leaves) for name, item in spec["fields"]}
    cls = _find_class(content, tuple(values))
    return values if cls is None else _instance(cls, values)


def _path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _mapping(path: str, items: dict[Any, Any]) -> Any:
    """``items`` in the mapping class at ``path``, as they are if that is none."""
    cls = _loaded(path)
    if not (isinstance(cls, type) and issubclass(cls, Mapping)):
        return items
    made: Any = cls
    return made(None, items) if issubclass(cls, defaultdict) else made(items)


def _instance(cls: type, values: dict[str, Any]) -> Any:
    if issubclass(cls, (tuple, Mapping)):
        return cls(**values)
    # Past __init__ and __post_init__: the values are final, and the class may be frozen.
    value = object.__new__(cls)
    for name, item in values.items():
        object.__setattr__(value, name, item)
    return value


def _find_class(path: str, fields: tuple[str, ...]) -> type | None:
    """The namedtuple or dataclass at ``path`` if it is loaded and has these fields."""
    found = _loaded(path)
    if not isinstance(found, type):
        return None
    if dataclasses.is_dataclass(found):
        return found if tuple(f.name for f in dataclasses.fields(found)) == fields else None
    if issubclass(found, tuple) and getattr(found, "_fields", None) == fields:
        return found
    return None


def _loaded(path: str) -> Any:
    """What stands at ``module:qualname`` in the modules that are loaded already.

    A file must not decide what gets imported: importing runs code.
    """
    module_name, _, qualname = path.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def match(spec: Spec, value: Any, is_leaf: Callable[[Any], bool], where: str) -> list[Any]:
    """Return the leaves of ``value`` in the order of ``spec``; a difference is an ArgumentError.

    Entries of a dict that hold constants only (the task that a branch was exported for) may be left
    out.
    """
    leaves: dict[int, Any] = {}
    _match(spec, value, is_leaf, where, leaves)
    return [leaves[index] for index in sorted(leaves)]


def _match(
    spec: Spec, value: Any, is_leaf: Callable[[Any], bool], where: str, leaves: dict[int, Any]
) -> None:
    ((kind, content), *_) = spec.items()
    if kind == "leaf":
        if not is_leaf(value):
            raise ArgumentError(
                f"{where}: expected a tensor but got {reprlib.repr(value)} "
                f"(type={type(value).__name__})"
            )
        leaves[content] = value
        return
    if kind == "const":
        if is_leaf(value) or value != content:
            raise ArgumentError(f"{where}: the module was exported with {content!r}, got {value!r}")
        return
    got = dict(_children(value))
    expected = [
        (key, item)
        for key, item in _items(spec, kind)
        if kind != "dict" or key in got or not is_constant(item)
    ]
    if list(got) != [key for key, _ in expected] and set(got) != {key for key, _ in expected}:
        raise ArgumentError(
            f"{where}: expected {kind} with {[key for key, _ in expected]}, got "
            f"{type(value).__name__} with {list(got)}"
        )
    for key, item in expected:
        _match(item, got[key], is_leaf, f"{where}[{key!r}]", leaves)


def is_constant(spec: Spec) -> bool:
    """Whether a part of a call has no tensor in it."""
    ((kind, _), *_) = spec.items()
    if kind in ("leaf", "const"):
        return kind == "const"
    return all(is_constant(item) for _, item in _items(spec, kind))


def last_constants(spec: Spec, count: int) -> tuple[Any, ...]:
    """The constants that complete ``count`` positional arguments of a call; ``()`` if not all are.

    ``spec``: of a whole call, a dict of ``args`` and ``kwargs``.
    """
    rest = dict(spec["dict"])["args"]["tuple"][count:]
    return tuple(rebuild(item, []) for item in rest) if all(map(is_constant, rest)) else ()


def _items(spec: Spec, kind: str) -> list[tuple[Any, Spec]]:
    if kind in {"list", "tuple"}:
        return list(enumerate(spec[kind]))
    return [(key, item) for key, item in spec["fields" if kind == "object" else kind]]


def _children(value: Any) -> list[tuple[Any, Any]]:
    fields = object_fields(value)
    if fields is not None:
        return [(name, item) for name, item in fields]
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    return []
