"""What a prepared model keeps of the user's class: plain attributes and methods."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any, Self

from torch import Tensor, nn

from qtune.capture.graph import GraphModel
from qtune.errors import PrepareError

FLOAT_CLASS = "_float_class"
"""Attribute of a prepared model: the class of the float model."""


class OfFloatClass(GraphModel):
    """A graph with the plain attributes and the methods of the float model's class."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return inherited(self, name)

    def _get_name(self) -> str:
        """What ``print`` calls the model: the float model's class, as the guide shows it."""
        cls: type = vars(self).get(FLOAT_CLASS, type(self))
        return cls.__name__

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        picklable_class(state)
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__setstate__(copy.deepcopy(super().__getstate__(), memo))
        return new


def preserve(prepared: nn.Module, float_model: nn.Module, names: Iterable[str] = ()) -> None:
    """Give ``prepared`` the plain attributes of ``float_model`` and access to its methods.

    Names that the prepared model has itself stay its own. ``names``: those that must be kept;
    raises ``PrepareError`` where the float model lacks one or it can't be kept.
    """
    own = vars(prepared)
    for name, value in vars(float_model).items():
        if not name.startswith("_") and not isinstance(value, (nn.Module, Tensor)):
            own.setdefault(name, value)
    own[FLOAT_CLASS] = type(float_model)
    for name in names:
        if not hasattr(float_model, name):
            raise PrepareError(
                f"prepare: preserved_attributes has {name!r}, but {type(float_model).__name__} has "
                "no such attribute"
            )
        if not hasattr(prepared, name):
            own[name] = getattr(float_model, name)


def inherited(prepared: nn.Module, name: str) -> Any:
    """A method, a property or a class attribute of the float model's class, bound to ``prepared``.

    Raises ``AttributeError`` where the class has none of its own.
    """
    cls = vars(prepared).get(FLOAT_CLASS)
    for base in () if cls is None else cls.__mro__:
        if base in nn.Module.__mro__:
            continue
        if name in vars(base):
            return _bound(vars(base)[name], prepared, type(prepared) if cls is None else cls)
    raise AttributeError(f"{type(prepared).__name__!r} object has no attribute {name!r}")


def picklable_class(state: dict[str, Any]) -> None:
    """Drop the float class from a state to be pickled if it can't be imported by its name."""
    cls = state.get(FLOAT_CLASS)
    if cls is None:
        return
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not cls:
        del state[FLOAT_CLASS]


def _bound(value: Any, prepared: nn.Module, cls: type) -> Any:
    if isinstance(value, FunctionType):
        return MethodType(value, prepared)
    is_descriptor = inspect.isdatadescriptor(value)
    if is_descriptor or isinstance(value, (classmethod, staticmethod)):
        bind: Any = value.__get__
        return bind(prepared, cls)
    return value
