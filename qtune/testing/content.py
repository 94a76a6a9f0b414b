"""What a model or a data set *is*, as a hash: equal content gives an equal digest, in any process.

Tensors count by dtype, shape and bytes; functions and classes of the user by their byte code, with
all code and constants that it uses (an edited one is another one), those of torch, qtune and the
standard library by name, their versions being hashed elsewhere.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import re
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

import qtune
from qtune.capture.inputs import Inputs

BY_NAME = frozenset({"torch", "qtune", "numpy"}) | (sys.stdlib_module_names - {"__main__"})
"""Packages whose code is known by its version."""

_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_ARRAYS = (Tensor, np.ndarray, np.generic)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DEPTH = 8
"""Levels of containers that count as plain data; one that holds itself has no end."""
_TORCH_STATE = frozenset(vars(nn.Module()))
_REPORTS = frozenset(
    {"_graph", "_programs", "float_graph", "report", "resolution", "float_ops", "unfused"}
)
"""Attributes of a prepared model that follow from the rest of it, and its graph, hashed apart."""


def digest(value: Any) -> str:
    """sha256 of ``value``: tensors, arrays, containers, functions, plain objects.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    hasher = _Hasher()
    hasher.add(value)
    return hasher.hexdigest()


def model_digest(model: nn.Module) -> str:
    """sha256 of the weights, constants, modules and graph of a captured or prepared model."""
    hasher = _Hasher()
    for tensors in (model.named_parameters, model.named_buffers):
        hasher.add(dict(tensors(remove_duplicate=False)))
    for name, module in model.named_modules():
        hasher.add((name, type(module), _own_state(module), *_hooks(module)))
        if isinstance(module, torch.jit.ScriptModule):
            hasher.add(str(module.code))
    graph = getattr(model, "graph", None)
    if isinstance(graph, fx.Graph):
        for node in graph.nodes:
            kept = {key: node.meta.get(key) for key in ("name", "op", "group")}
            hasher.add((node.name, node.op, node.target, node.args, node.kwargs, kept))
    return hasher.hexdigest()


@functools.cache
def source_digest() -> str:
    """sha256 of qtune's own source: an edited checkout has the version of the unedited one."""
    sha = hashlib.sha256()
    root = Path(qtune.__file__).parent
    for path in sorted(root.rglob("*.py")):
        sha.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()


def _own_state(module: nn.Module) -> dict[str, Any]:
    """The attributes that the class itself set, by name; no tensors, no children."""
    hidden = _TORCH_STATE | _REPORTS
    state = {
        key: value
        for key, value in vars(module).items()
        if key not in hidden and not key.startswith("qtune_")
    }
    spec = getattr(type(module), "spec", None)
    if isinstance(spec, property):  # an operator of the registry, which a user may have added
        state["spec"] = module.spec
    return state


def _hooks(module: nn.Module) -> Iterator[Any]:
    yield from module._forward_hooks.values()
    yield from module._forward_pre_hooks.values()


class _Hasher:
    """Feeds values into one sha256, each with a tag of its kind; follows cycles once."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._open: list[int] = []
        self._code_seen: dict[Any, int] = {}

    def hexdigest(self) -> str:
        return self._sha.hexdigest()

    def add(self, value: Any) -> None:
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            self._text(type(value).__name__, repr(value))
            return
        if id(value) in self._open:
            self._text("cycle", str(len(self._open) - self._open.index(id(value))))
            return
        self._open.append(id(value))
        try:
            self._compound(value)
        finally:
            self._open.pop()

    def _text(self, tag: str, text: str = "") -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._sha.update(f"{tag} {len(data)} ".encode() + data)

    def _all(self, tag: str, values: Any) -> None:
        items = list(values)
        self._text(tag, str(len(items)))
        for item in items:
            self.add(item)

    def _compound(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            self._text("array", f"{value.dtype} {value.shape}")
            self._sha.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            self._text(f"mapping {type(value).__qualname__}")
            self._all("keys", sorted(value, key=repr))
            self._all("values", (value[key] for key in sorted(value, key=repr)))
        elif isinstance(value, list | tuple):
            self._all(type(value).__qualname__, value)
        elif isinstance(value, set | frozenset):
            self._all("set", sorted(digest(item) for item in value))
        elif isinstance(value, fx.Node):
            self._text("node", value.name)
        else:
            self._object(value)

    def _tensor(self, value: Tensor) -> None:
        data = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        self._text("tensor", f"{data.dtype} {tuple(data.shape)}")
        if data.numel():
            self._sha.update(data.flatten().view(torch.uint8).numpy().data)

    def _object(self, value: Any) -> None:
        if isinstance(value, type | types.FunctionType):
            self._once(value)
        elif isinstance(value, enum.Enum):
            self._all(f"enum {_name(type(value))}.{value.name}", [value.value])
        elif isinstance(value, types.MethodType):
            self._all("method", (value.__func__, value.__self__))
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, functools.partial):
            self._all("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, Inputs):
            self._all("inputs", (value.args, dict(value.kwargs)))
        else:
            self._instance(value)

    def _once(self, value: type | types.FunctionType) -> None:
        """Code that is used in many places is read in the first."""
        number = self._code_seen.setdefault(value, len(self._code_seen))
        if number < len(self._code_seen) - 1:
            self._text("again", str(number))
        elif isinstance(value, type):
            self._class(value)
        else:
            self._function(value)

    def _class(self, cls: type) -> None:
        self._text("class", _name(cls))
        if not _known(cls.__module__):
            self._all("bases", cls.__bases__)
            self._all("body", _body(cls))

    def _function(self, function: types.FunctionType) -> None:
        self._text("function", _name(function))
        if not _known(function.__module__):
            self._code(function.__code__)
            cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
            self._all("bound", (function.__defaults__, function.__kwdefaults__, cells))
            self._all("globals", _used_globals(function))

    def _code(self, code: types.CodeType) -> None:
        self._all("code", (code.co_code, code.co_names, code.co_consts))

    def _instance(self, value: Any) -> None:
        self.add(type(value))
        if dataclasses.is_dataclass(value):
            self._all("fields", (getattr(value, f.name) for f in dataclasses.fields(value)))
        elif isinstance(value, nn.Module):  # in a list or dict of another one
            self.add({key: _unnumbered(key, found) for key, found in vars(value).items()})
        elif isinstance(getattr(value, "__dict__", None), dict):
            self.add(vars(value))
        elif slots := _slots(value):
            self.add(slots)
        else:  # torch.dtype, slice, builtin functions: their text says all
            self._text("repr", _ADDRESS.sub("", repr(value)))


def _unnumbered(key: str, value: Any) -> Any:
    """A module's attribute; torch numbers the hooks of a process, whoever they belong to."""
    return list(value.values()) if "_hooks" in key and isinstance(value, Mapping) else value


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in BY_NAME


def _body(cls: type) -> Iterator[Any]:
    """The code of a class, however it is wrapped, and its constants."""
    for name, value in sorted(vars(cls).items(), key=lambda pair: pair[0]):
        if isinstance(value, property):
            yield from (value.fget, value.fset)
        elif isinstance(value, classmethod | staticmethod):
            yield value.__func__
        elif isinstance(value, functools.cached_property):
            yield value.func
        elif isinstance(value, types.FunctionType) or (name[:2] != "__" and _is_content(value)):
            yield (name, value)


def _used_globals(function: types.FunctionType) -> Iterator[Any]:
    """What a function takes from its module, and through it from other modules of the user."""
    names = _names_in(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            yield from _used_attributes(value, names)
        elif _is_content(value):
            yield value


def _used_attributes(module: types.ModuleType, names: Collection[str]) -> Iterator[Any]:
    if not _known(module.__name__):
        found = (vars(module).get(name) for name in names)
        yield from (value for value in found if _is_content(value))


def _names_in(code: types.CodeType) -> tuple[str, ...]:
    """Global names and attributes, also of the lambdas and comprehensions in a function."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return (*code.co_names, *(name for one in inner for name in _names_in(one)))


def _is_content(value: Any, depth: int = _DEPTH) -> bool:
    """Whether a value is code or plain data; loggers, locks and the like say nothing."""
    if isinstance(value, list | tuple | set | frozenset):
        return depth > 0 and all(_is_content(item, depth - 1) for item in value)
    if isinstance(value, Mapping):  # other keys have no order that is the same in every process
        plain = all(isinstance(key, _SCALARS) for key in value)
        return plain and depth > 0 and all(_is_content(v, depth - 1) for v in value.values())
    kinds = (types.FunctionType, type, enum.Enum, functools.partial)
    if isinstance(value, _SCALARS + _ARRAYS + kinds):
        return True
    return not isinstance(value, type) and callable(getattr(value, "__wrapped__", None))


def _slots(value: Any) -> dict[str, Any]:
    given = (getattr(cls, "__slots__", ()) for cls in type(value).__mro__)
    names = [name for slots in given for name in ((slots,) if isinstance(slots, str) else slots)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where the variable was never set
    except ValueError:
        return False
    return True
