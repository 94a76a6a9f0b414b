"""Sizes of a witnessed forward: ints that remember where they come from."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from qtune.capture.tape import Tape


def _method(name: str, function: Callable[..., Any], *, reflected: bool = False) -> Any:
    """A method of ints whose result has a node too."""
    plain = getattr(int, name)

    def method(self: SeenSize, *other: Any) -> Any:
        operands = (*other, self) if reflected else (self, *other)
        return _result(self, function, operands, plain(self, *other))

    return method


class SeenSize(int):
    """A size, an int in every respect; ``node`` stands for it on ``tape``.

    What a model makes of the sizes of its inputs (``torch.arange(n)``) is an operator in every
    stage, what it makes of plain numbers a constant; that is what the node tells.
    """

    node: fx.Node
    tape: Tape

    @classmethod
    def of(cls, value: int, node: fx.Node, tape: Tape) -> SeenSize:
        """The size ``value`` that ``node`` gives."""
        size = cls(value)
        size.node, size.tape = node, tape
        return size

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)

    __add__ = _method("__add__", operator.add)
    __sub__ = _method("__sub__", operator.sub)
    __mul__ = _method("__mul__", operator.mul)
    __floordiv__ = _method("__floordiv__", operator.floordiv)
    __mod__ = _method("__mod__", operator.mod)
    __radd__ = _method("__radd__", operator.add, reflected=True)
    __rsub__ = _method("__rsub__", operator.sub, reflected=True)
    __rmul__ = _method("__rmul__", operator.mul, reflected=True)
    __rfloordiv__ = _method("__rfloordiv__", operator.floordiv, reflected=True)
    __rmod__ = _method("__rmod__", operator.mod, reflected=True)
    __neg__ = _method("__neg__", operator.neg)


def size_of(tape: Tape, tensor: Tensor, dim: int) -> int:
    """``tensor.size(dim)``, with its node where an input decides it."""
    value = int(tensor.size(dim))
    entry = tape.ledger.find(tensor)
    if entry is None or tape.problem is not None or entry.node not in tape.varying:
        return value
    node = tape.emit("call_method", "size", (entry.node, dim), kind="size")
    return SeenSize.of(value, node, tape)


def length_of(tape: Tape, tensor: Tensor) -> int:
    """``len(tensor)``; raises what torch raises for a number."""
    if tensor.dim() == 0:
        length: Any = type(tensor).__len__
        return int(length(tensor))
    return size_of(tape, tensor, 0)


def shape_of(tape: Tape, tensor: Tensor) -> torch.Size:
    """``tensor.shape`` of such sizes."""
    return torch.Size([size_of(tape, tensor, dim) for dim in range(tensor.dim())])


def _result(size: SeenSize, function: Any, operands: tuple[Any, ...], value: Any) -> Any:
    tape = size.tape
    if type(value) is not int or not tape.recording or tape.problem is not None:
        return value
    nodes = tuple(v.node if isinstance(v, SeenSize) else v for v in operands)
    return SeenSize.of(value, tape.emit("call_function", function, nodes, kind="size"), tape)
