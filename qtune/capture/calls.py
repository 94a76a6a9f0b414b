"""One call of a torch function, method or leaf module: run on the example, and written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from qtune.capture.exits import leave
from qtune.capture.nodes import describe, map_leaves, tensors_in
from qtune.capture.origins import refuse_transforms
from qtune.capture.sizes import is_symbol, plain
from qtune.capture.structure import field_names
from qtune.errors import CaptureError

AFTER = "after"
"""Key of ``node.meta`` of a change in place: names of the nodes that read the memory before it."""

if TYPE_CHECKING:
    from qtune.capture.tape import Tape

SETITEM = "__setitem__"


@dataclass(frozen=True, slots=True)
class Call:
    """What is called. ``op`` and ``target`` as in ``fx.Node``; ``function`` runs it.

    ``name``: how messages call it. ``opaque``: a module or function whose inside isn't recorded.
    """

    op: str
    target: Any
    function: Callable[..., Any]
    name: str
    opaque: bool = False


class Calls:
    """Runs calls and writes them on the tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.is_random = False
        """Set while a call runs, when it draws random numbers."""

    def run(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the call on the example, after the call was recorded."""
        try:
            return self._run(call, args, kwargs)
        except CaptureError as error:
            self._tape.note(error)
            raise

    def _run(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        tape = self._tape
        tensors = list(tensors_in((args, kwargs)))
        with torch._C.DisableTorchFunction():
            node_args, node_kwargs = self._convert(call, args, kwargs, tensors)
            versions = [_version(tensor) for tensor in tensors]
        self.is_random = False
        with tape.paused():
            value = call.function(*map_leaves(args, plain), **map_leaves(dict(kwargs), plain))
        with torch._C.DisableTorchFunction():
            changed = [
                t
                for t, v in zip(tensors, versions, strict=True)
                if _version(t) != v or (v is None and _is_changed(call, t, tensors, value))
            ]
            if not changed and _is_handed_on(call, value, tensors):
                with tape.paused():
                    value = value.view_as(value)
            if not changed and next(tensors_in(value), None) is None:
                sources = tensors + [v for v in (args, kwargs) if _has_symbol(v)]
                written = (call.op, call.target, node_args, node_kwargs)
                return leave(tape, call, written, sources, value)
            node = tape.emit(call.op, call.target, node_args, node_kwargs, value=value)
            if self.is_random or call.opaque:  # what is inside may hold parameters
                tape.changing.add(node)
            self._finish(call, node, value, tensors, changed)
        return value

    def _convert(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tensors: list[Tensor],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for tensor in tensors:
            refuse_transforms(tensor)
            self._tape.origins.refuse_unseen(tensor)
        if call.target == SETITEM:
            self._tape.aliases.skip_write_back(args[0], args[1], args[2])
        converted = tuple(self._tape.convert(arg) for arg in args)
        return converted, {key: self._tape.convert(arg) for key, arg in kwargs.items()}

    def _finish(
        self, call: Call, node: fx.Node, value: Any, tensors: list[Tensor], changed: list[Tensor]
    ) -> None:
        """Enter the results, and note what was changed in place."""
        tape = self._tape
        if call.target == SETITEM and changed:
            value = tensors[0]  # in the graph, x[i] = v is the changed x
            describe(node, value)
        is_list = isinstance(value, tuple | list) and not field_names(type(value))
        if is_list and not call.opaque and node in tape.varying:
            tape.conditions.guard_length(node, len(value))
        tape.bind(value, node, tensors)
        ids = {id(tensor) for tensor in tensors_in(value)}
        for tensor in changed:
            entry = tape.ledger.find(tensor)
            if entry is not None and id(tensor) in ids:
                node.meta[AFTER] = tape.ledger.readers(entry, node)
                tape.origins.change(entry)
                tape.ledger.changed(entry)


def _is_handed_on(call: Call, value: Any, tensors: list[Tensor]) -> bool:
    """Whether the call gave its operand back: a stub does, or a dropout in eval mode.

    What it gives must be a tensor of its own then, so that a later use of the operand is not taken
    for a use of the result, on which prepare puts a fake-quantize.
    """
    is_operand = type(value) in (Tensor, nn.Parameter) and any(value is t for t in tensors)
    return is_operand and not call.name.endswith("_")


def _has_symbol(value: Any) -> bool:
    found: list[Any] = []
    map_leaves(value, lambda leaf: found.append(leaf) if is_symbol(leaf) else leaf)
    return bool(found)


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _is_changed(call: Call, tensor: Tensor, tensors: list[Tensor], value: Any) -> bool:
    """For tensors of an inference mode inside of forward, which have no version."""
    return value is tensor or (call.target == SETITEM and tensor is tensors[0])
