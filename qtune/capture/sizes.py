"""Sizes and training flags while a model is recorded: numbers that remember where they came from.

``SizeInt`` answers ``isinstance(n, int)`` with yes and behaves like its value, but it is no ``int``
to the interpreter: code that takes an ``int`` by its C value (``range``, ``lst[n]``, ``math.gcd``,
``"%d" % n``, NumPy) would read a subclass without anyone noticing, whereas here it has to ask
``__index__``. So each way out is seen. ``torch.SymInt`` as the base makes torch's argument parsers
accept it; nothing of SymInt's own machinery is used.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import fx

from qtune.errors import CaptureError

KEY = "the key of a lookup (dict, set, functools.lru_cache): give an example of each such size"
"""What a guard says of a size that was hashed."""


class SizeTape(Protocol):
    """What a size asks of the recording that it belongs to."""

    @property
    def recording(self) -> bool:
        """Whether the model's own code is running now."""

    def size_node(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> fx.Node:
        """Record an operation on sizes."""

    def guard_comparison(self, function: Callable[..., Any], operands: tuple[Any, Any]) -> None:
        """Record that a comparison of sizes came out as it did."""

    def guard_value(self, size: Symbol, use: str = "") -> None:
        """Record that the size has the value it has; ``use``: where it went, for the message."""

    def refusal(self, text: str) -> CaptureError:
        """An error that ends the recording even if the model catches it."""


class Symbol:
    """A plain value with the node that computes it and its text in messages."""

    def __init__(self, value: Any, origin: fx.Node, tape: SizeTape, text: str) -> None:
        self._value = value
        self._origin = origin
        self._tape = tape
        self._text = text

    def _leave(self) -> Any:
        """The plain value; from here on nothing is known of where it went, so it is guarded."""
        if self._tape.recording:
            self._tape.guard_value(self)
        return self._value

    @property
    def node(self) -> Any:
        """torch's way into a SymInt; reached only by torch code that recording doesn't see."""
        raise self._tape.refusal(
            f"the size `{self._text}` went into torch code that can't be recorded with sizes that "
            "change (torch.func.vmap, for one); pass int(size) there, which keeps the recorded "
            "value and refuses others, or write the computation out"
        )

    def __reduce__(self) -> Any:
        return type(self._value), (self._leave(),)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class SizeInt(Symbol, torch.SymInt):
    """A size. ``+ - * / // %``, ``divmod`` and the sign stay symbolic; all else is guarded."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __divmod__(self, other: Any) -> Any:
        return (self // other, self % other) if _is_int(other) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return (other // self, other % self) if _is_int(other) else NotImplemented

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        return np.asarray(self._leave(), dtype=dtype)

    def __sym_max__(self, other: Any) -> Any:
        return max(self, other)

    def __sym_min__(self, other: Any) -> Any:
        return min(self, other)

    def __sym_float__(self) -> float:
        return float(self._leave())

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return _record(self._tape, operator.neg, (self,), f"-{self._text}")


class SizeFloat(Symbol, torch.SymFloat):
    """A number computed from sizes: ``size / 2``. Arithmetic with numbers and sizes, ``ceil``,
    ``floor``, ``trunc`` and ``round`` stay symbolic; all else, torch functions too, is guarded.

    Python demands a real int of ``__int__``, so ``int(size / 2)`` guards its result.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return _record(self._tape, operator.neg, (self,), f"-{self._text}")

    def __ceil__(self) -> Any:
        return _record(self._tape, math.ceil, (self,), f"ceil({self._text})")

    def __floor__(self) -> Any:
        return _record(self._tape, math.floor, (self,), f"floor({self._text})")

    def __trunc__(self) -> Any:
        return _record(self._tape, math.trunc, (self,), f"trunc({self._text})")

    def __round__(self, ndigits: int | None = None) -> Any:
        if ndigits is not None:
            return round(self._leave(), ndigits)
        return _record(self._tape, round, (self,), f"round({self._text})")

    def __int__(self) -> int:
        return int(plain(math.trunc(self))) if not self._tape.recording else self._truncated()

    def _truncated(self) -> int:
        whole: SizeInt = math.trunc(self)
        return int(whole._leave())


class Flag(Symbol, torch.SymBool):
    """``module.training`` as the model read it: symbolic as an argument, guarded in a branch.

    ``used`` tells whether it went anywhere; an ``is`` test leaves no trace.
    """

    used = False

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return bool

    def _leave(self) -> Any:
        self.used = True
        return super()._leave()

    def __bool__(self) -> bool:
        return bool(self._leave())


def is_symbol(value: Any) -> bool:
    """Whether ``value`` is recorded (``isinstance`` says int, float or bool)."""
    return type(value) in (SizeInt, SizeFloat, Flag)


def plain(value: Any) -> Any:
    """The value without its origin; nothing is recorded."""
    return value._value if is_symbol(value) else value


def _is_int(value: Any) -> bool:
    return type(value) is int or type(value) is SizeInt or type(value) is bool


def _is_number(value: Any) -> bool:
    return _is_int(value) or type(value) is float or type(value) is SizeFloat


def _text(value: Any) -> str:
    return value._text if is_symbol(value) else repr(value)


def _record(
    tape: SizeTape, function: Callable[..., Any], operands: tuple[Any, ...], text: str
) -> Any:
    result = function(*map(plain, operands))
    if not tape.recording:
        return result
    kind = SizeInt if type(result) is int else SizeFloat
    return kind(result, tape.size_node(function, operands), tape, text)


def _arithmetic(function: Callable[..., Any], sign: str, reflected: bool) -> Callable[..., Any]:
    def method(self: Symbol, other: Any) -> Any:
        operands = (other, self) if reflected else (self, other)
        if _is_number(other):
            text = f"({_text(operands[0])} {sign} {_text(operands[1])})"
            return _record(self._tape, function, operands, text)
        if isinstance(other, float | complex):
            left, right = (other, self._leave()) if reflected else (self._leave(), other)
            return function(left, right)
        return NotImplemented  # a tensor, a list, a NumPy number: their own methods go on

    return method


def _comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Symbol, other: Any) -> Any:
        if not (_is_int(other) or isinstance(other, float)):
            return NotImplemented
        if self._tape.recording:
            self._tape.guard_comparison(function, (self, other))
        return function(self._value, plain(other))

    return method


def _binary_exit(function: Callable[..., Any], reflected: bool) -> Callable[..., Any]:
    def method(self: Symbol, other: Any, *more: Any) -> Any:
        if not isinstance(other, int | float | complex):
            return NotImplemented
        own, other = self._leave(), plain(other)
        return function(other, own) if reflected else function(own, other, *more)

    return method


def _exit(name: str, base: type) -> Callable[..., Any]:
    plain_method = getattr(base, name)

    def method(self: Symbol, *args: Any) -> Any:
        return plain_method(self._leave(), *map(plain, args))

    return method


def _exit_property(name: str) -> property:
    return property(lambda self: getattr(self._leave(), name))


_ARITHMETIC: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (operator.add, "+"),
    "sub": (operator.sub, "-"),
    "mul": (operator.mul, "*"),
    "truediv": (operator.truediv, "/"),
    "floordiv": (operator.floordiv, "//"),
    "mod": (operator.mod, "%"),
}
_LEAVING: dict[str, Callable[..., Any]] = {
    "pow": pow,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_NOT_THE_VALUE = frozenset(dir(object)) - {"__format__", "__hash__", "__repr__", "__str__"}


def _complete(cls: type, base: type) -> None:
    """Give ``cls`` every remaining method of ``base``, each of them a guarded way out."""
    for name in dir(base):
        if name in vars(cls) or name in _NOT_THE_VALUE or name == "__getnewargs__":
            continue
        is_method = callable(getattr(base, name))
        setattr(cls, name, _exit(name, base) if is_method else _exit_property(name))
    for name, value in vars(cls.__mro__[2]).items():  # torch's own: what is left asks for its node
        if name not in vars(cls) and name not in dir(object) and callable(value):
            setattr(cls, name, property(lambda self: self.node))


def _key(self: Symbol) -> int:
    """``hash(size)``: what follows is a lookup."""
    if self._tape.recording:
        self._tape.guard_value(self, KEY)
    return hash(self._value)


for _name, (_function, _sign) in _ARITHMETIC.items():
    for _cls in (SizeInt, SizeFloat):
        setattr(_cls, f"__{_name}__", _arithmetic(_function, _sign, reflected=False))
        setattr(_cls, f"__r{_name}__", _arithmetic(_function, _sign, reflected=True))
for _name, _function in _LEAVING.items():
    setattr(SizeInt, f"__{_name}__", _binary_exit(_function, reflected=False))
    setattr(SizeInt, f"__r{_name}__", _binary_exit(_function, reflected=True))
for _name in _COMPARISONS:
    for _cls in (SizeInt, SizeFloat):
        setattr(_cls, f"__{_name}__", _comparison(getattr(operator, _name)))
    setattr(Flag, f"__{_name}__", _exit(f"__{_name}__", bool))
SizeInt.__hash__ = SizeFloat.__hash__ = _key  # type: ignore
_complete(SizeInt, int)
_complete(SizeFloat, float)
_complete(Flag, bool)
