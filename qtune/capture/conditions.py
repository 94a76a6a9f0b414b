"""Sizes that stay symbolic, and the guards for everything else that leaves the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from qtune.capture import guards
from qtune.capture.nodes import name_of
from qtune.capture.sizes import Flag, SizeInt, Symbol, is_symbol, plain
from qtune.capture.source import caller
from qtune.errors import CaptureError

if TYPE_CHECKING:
    from qtune.capture.tape import Tape


class Conditions:
    """Writes sizes, flags and guards on a tape; what sizes and flags report to."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._guarded: set[Any] = set()
        self._sizes: dict[tuple[fx.Node, int], fx.Node] = {}
        self._flag_nodes: dict[tuple[str, bool], fx.Node] = {}
        self.flags: list[Flag] = []

    @property
    def recording(self) -> bool:
        """Whether the model's own code is running now."""
        return self._tape.recording

    def size(self, tensor: Tensor, dim: int) -> Any:
        """``tensor.size(dim)``, symbolic where it may depend on an input.

        Raises what torch raises for a dimension that the tensor doesn't have.
        """
        value = tensor.size(dim)
        node = self._tape.node_of(tensor)
        if node not in self._tape.varying:
            return value
        origin = self._sizes.get((node, dim))
        if origin is None:
            origin = self._tape.emit("call_method", "size", (node, dim), kind="size")
            self._sizes[node, dim] = origin
        return SizeInt(value, origin, self, f"{name_of(node)}.shape[{dim}]")

    def shape(self, tensor: Tensor) -> torch.Size:
        """``tensor.shape`` with symbolic sizes; how many there are is guarded."""
        node = self._tape.node_of(tensor)
        if node not in self._tape.varying:
            return tensor.shape
        rank = tensor.dim()
        self.guard_result(("call_method", "dim", (node,), {}), rank, f"{name_of(node)}.dim()")
        return torch.Size([self.size(tensor, dim) for dim in range(rank)])

    def number(self, call: tuple[str, Any, Any, Any], value: int, text: str) -> Any:
        """The result of ``call = (op, target, args, kwargs)`` as a symbolic size."""
        origin = self._tape.emit(*call, kind="size")
        return SizeInt(value, origin, self, text)

    def broadcast(self, function: Callable[..., Any], shapes: Any, value: torch.Size) -> torch.Size:
        """``function(*shapes)``, torch's ``broadcast_shapes``, which gave ``value``."""
        args = self._tape.convert(shapes)
        node = self._tape.emit("call_function", function, args, kind="size")
        return torch.Size(
            [
                self.number(
                    ("call_function", operator.getitem, (node, dim), {}),
                    size,
                    f"broadcast_shapes(...)[{dim}]",
                )
                for dim, size in enumerate(value)
            ]
        )

    def flag(self, module: nn.Module, path: str) -> Any:
        """``module.training`` as the model reads it."""
        target = f"{path}.training" if path else "training"
        value = bool(vars(module)["training"])
        origin = self._flag_nodes.get((target, value))
        if origin is None:
            origin = self._tape.emit("get_attr", target, (), kind="attribute")
            self._flag_nodes[target, value] = origin
        flag = Flag(value, origin, self, target)
        self.flags.append(flag)
        return flag

    def size_node(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> fx.Node:
        """Record an operation on sizes."""
        args = tuple(map(_operand, operands))
        return self._tape.emit("call_function", function, args, kind="size")

    def guard_comparison(self, function: Callable[..., Any], operands: tuple[Any, Any]) -> None:
        """Record that a comparison of sizes came out as it did."""
        sign = guards.SIGNS[function]
        holds = bool(function(*map(plain, operands)))
        left, right = map(_operand, operands)
        text = guards.condition(sign, _text(operands[0]), _text(operands[1]), holds)
        self._guard(guards.check_comparison, (sign, left, right, holds), text)

    def guard_value(self, size: Symbol, use: str = "") -> None:
        """Record that a size or flag has the value it has. ``use``: where it went."""
        check = guards.check_training if type(size) is Flag else guards.check_value
        text = f"{_text(size)} == {size._value}" + (f", {use}" if use else "")
        self._guard(check, (size._origin, size._value), text)

    def refusal(self, text: str) -> CaptureError:
        """An error with the model's line that ends the recording even if the model catches it."""
        error = CaptureError(f"{caller()}: {text}")
        self._tape.note(error)
        return error

    def guard_result(self, call: tuple[str, Any, Any, Any], value: Any, text: str) -> None:
        """Record that ``call = (op, target, args, kwargs)`` gave ``value``, which is no tensor."""
        key = ("result", repr(call), repr(value))
        if key in self._guarded:
            return
        self._guarded.add(key)
        node = self._tape.emit(*call, kind="value")
        self._guard(guards.check_value, (node, value), f"{text} == {value}")

    def guard_length(self, node: fx.Node, length: int) -> None:
        """Record that a call gave so many tensors."""
        self._guard(guards.check_length, (node, length), f"len({name_of(node)}) == {length}")

    def _guard(self, check: Callable[..., Any], args: tuple[Any, ...], text: str) -> None:
        key = (check, repr(args))
        if key not in self._guarded:
            self._guarded.add(key)
            self._tape.emit("call_function", check, (*args, text, caller()), kind="guard")


def _operand(value: Any) -> Any:
    return value._origin if is_symbol(value) else value


def _text(value: Any) -> str:
    text = value._text if is_symbol(value) else repr(value)
    return text[1:-1] if text.startswith("(") else text
