"""Sees one forward of any module while it runs, and changes nothing in it.

The machinery is that of recording (:mod:`qtune.capture`): the calls of layers and torch functions
are written on a tape, from which the operators get the names that ``prepare`` would give them. But
here the user's own call runs: on their tensors, with plain sizes and flags, with its effects on
state, gradients and random numbers. What can't be recorded is no error; the names of functions are
counted here then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.overrides import _get_current_function_mode, _pop_mode_temporarily

from qtune.capture.blocks import recording_by
from qtune.capture.calls import SETITEM, Call, Calls
from qtune.capture.handlers import ModelHandlers
from qtune.capture.leaf import hands_on
from qtune.capture.ledger import Entry
from qtune.capture.mode import RecordingMode
from qtune.capture.nodes import tensors_in
from qtune.capture.patches import installed
from qtune.capture.tape import Tape
from qtune.errors import CaptureError, QtuneError
from qtune.profiler.seen_size import SeenSize, length_of, shape_of, size_of

_COUNTS = frozenset({"numel", "nelement"})
"""Calls that give a size."""
_EVERY = 2
"""Calls after which tensors that the model has dropped are let go."""


class OnCall(Protocol):
    """Told of every call: ``before`` it, and ``after`` it with the node, if one was written."""

    def before(self, call: Call, args: Any, kwargs: Any) -> Any:
        """Look at the arguments; what this gives is handed to ``after``."""

    def after(self, call: Call, looked: Any, value: Any, node: fx.Node | None) -> None:
        """Look at the result."""


class Witness:
    """One forward of ``model``. ``tape`` holds the graph; ``leaf``: which modules are one call."""

    def __init__(
        self, model: nn.Module, leaf: Callable[[nn.Module], bool], on_call: OnCall
    ) -> None:
        self.tape = _Tape(model)
        self._handlers = _Handlers(model, self.tape, leaf, on_call)

    @contextmanager
    def watching(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """The forward runs inside the block; ``args`` and ``kwargs`` are those of its call."""
        self._enter_inputs([*args, *kwargs.values()])
        calls = self._handlers.calls
        try:
            with (
                recording_by(self._handlers),
                installed(self._handlers),
                _Seeing(self.tape, calls),
            ):
                yield
        finally:
            self.tape.close()

    def _enter_inputs(self, values: Sequence[Any]) -> None:
        with torch._C.DisableTorchFunction():
            for index, tensor in enumerate(tensors_in(values)):
                if self.tape.ledger.find(tensor) is None:
                    self.tape.placeholder(f"input_{index}", tensor)


class _Tape(Tape):
    """Knows the sizes of a witnessed forward as arguments."""

    def convert(self, value: Any) -> Any:
        """An argument as fx stores it."""
        return value.node if isinstance(value, SeenSize) else super().convert(value)


class _Calls(Calls):
    """Runs calls as they are, and writes them on the tape as long as that works."""

    def __init__(self, tape: Tape, on_call: OnCall) -> None:
        super().__init__(tape)
        self._on_call = on_call
        self._count = 0

    def _is_constant(self, entry: Entry) -> bool:
        """Whether the value is needed at the end, when calls on constants are sorted out."""
        tape = self._tape
        return any(n not in tape.varying and n not in tape.changing for n in _nodes(entry))

    def run(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the call."""
        tape = self._tape
        self._count += 1
        if self._count % _EVERY == 0:
            tape.ledger.release(self._is_constant)
        tensors = list(tensors_in((args, kwargs)))
        if any(map(_is_transformed, tensors)):
            return self._unseen(call, args, kwargs)
        with tape.paused(), torch._C.DisableTorchFunction(), torch.no_grad():
            written = self._written(call, args, kwargs, tensors)
            looked = self._on_call.before(call, args, kwargs)
            versions = [_version(tensor) for tensor in tensors]
            random = None if tensors else torch.get_rng_state()
        with tape.paused():
            value = call.function(*args, **kwargs)
        made = args[0] if call.target == SETITEM else value
        if next(tensors_in(made), None) is None:
            return self._number(call, written, value)
        with tape.paused(), torch._C.DisableTorchFunction(), torch.no_grad():
            changed = [t for t, v in zip(tensors, versions, strict=True) if _version(t) != v]
            drew = random is not None and not torch.equal(random, torch.get_rng_state())
            self.is_random = call.opaque or drew
            node = self._node(call, written, value, tensors, changed)
            self._on_call.after(call, looked, made, node)
        return value

    def _number(self, call: Call, written: Any, value: Any) -> Any:
        """The result of a call that makes no tensor."""
        if type(value).__module__ == "numpy":
            self._tape.note(CaptureError(f"{call.name} hands a tensor to code outside of torch"))
        if call.name not in _COUNTS or written is None or self._tape.problem is not None:
            return value
        node = self._tape.emit(call.op, call.target, *written, kind="size")
        return SeenSize.of(value, node, self._tape) if node in self._tape.varying else value

    def _unseen(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call inside of a torch.func transform: its tensors have no values of their own."""
        self._tape.note(CaptureError(f"{call.name} runs inside of a torch.func transform"))
        with self._tape.paused():
            return call.function(*args, **kwargs)

    def _written(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if self._tape.problem is not None:
            return None
        try:
            return self._convert(call, args, kwargs, tensors)
        except QtuneError as error:
            self._tape.note(error)  # type: ignore[arg-type]
            return None

    def _node(
        self,
        call: Call,
        written: tuple[tuple[Any, ...], dict[str, Any]] | None,
        value: Any,
        tensors: list[Tensor],
        changed: list[Tensor],
    ) -> fx.Node | None:
        if written is None:
            return None
        try:
            node = self._tape.emit(call.op, call.target, *written, value=value)
            if self.is_random:
                self._tape.changing.add(node)
            self._finish(call, node, value, tensors, changed)
        except QtuneError as error:
            self._tape.note(error)  # type: ignore[arg-type]
            return None
        return node


class _Handlers(ModelHandlers):
    """Enters modules and sees functions as a recording does, with plain values."""

    def __init__(
        self, model: nn.Module, tape: Tape, leaf: Callable[[nn.Module], bool], on_call: OnCall
    ) -> None:
        super().__init__(model, tape, leaf, symbolic_flags=False)
        self.calls = _Calls(tape, on_call)

    def _leaf_call(
        self, name: str, module: nn.Module, args: Any, kwargs: Any, original: Any
    ) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            with _without_mode():
                return original(module, *args, **kwargs)

        call = Call("call_module", name, function, name, opaque=True)
        return self.calls.run(call, args, kwargs)

    def module(self, module: nn.Module, args: Any, kwargs: Any, original: Any) -> Any:
        """A leaf is one call, any other module is entered."""
        name = self.names.get(id(module))
        is_call = bool(name) and self._leaf(module) and not hands_on(module, args)
        if name and is_call and not self._is_altered(module):
            return self._leaf_call(name, module, args, kwargs, original)
        if name is None:
            return original(module, *args, **kwargs)
        with self.tape.scope(name):
            return original(module, *args, **kwargs)

    def thread(self) -> None:
        """What another thread computes is not seen."""

    def training(self, module: nn.Module, value: bool) -> Any:
        """The flag as it is."""
        return value

    def function(self, cls: type, args: Any, kwargs: Any, original: Any) -> Any:
        """A ``torch.autograd.Function`` is one call; torch's carriers of hooks are none."""
        if cls.__module__.startswith("torch."):
            return original(cls, *args, **kwargs)
        return super().function(cls, args, kwargs, original)

    def length(self, tensor: Tensor) -> Any:
        """``len(tensor)``."""
        with torch._C.DisableTorchFunction():
            return length_of(self.tape, tensor)

    def seed(self) -> None:
        """Seeding is no call on tensors."""

    def broadcast(self, shapes: Any, original: Any) -> Any:
        """``torch.broadcast_shapes``."""
        return original(*shapes)


class _Seeing(RecordingMode):
    """The function mode, with plain sizes, attributes and gradients."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one call, and show it."""
        if func is torch.autograd.grad:
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    def _attribute(self, func: Any, args: tuple[Any, ...]) -> Any:
        if func.__self__.__name__ == "shape":
            return shape_of(self._tape, args[0])
        value = func(*args)
        if not isinstance(value, Tensor) or func.__self__.__name__ in ("data", "grad"):
            return value
        return super()._attribute(func, args)

    def _assign(self, func: Any, args: tuple[Any, ...]) -> Any:
        return func(*args)

    def _size(self, func: Any, tensor: Tensor, dim: Any = None) -> Any:
        if dim is None:
            return shape_of(self._tape, tensor)
        return size_of(self._tape, tensor, dim) if isinstance(dim, int) else func(tensor, dim)

    def _len(self, func: Any, tensor: Tensor) -> Any:
        return length_of(self._tape, tensor)

    def _gradient(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)


@contextmanager
def _without_mode() -> Iterator[None]:
    """Nothing sees the inside of a layer, so that torch takes its fast paths there as ever."""
    current: Any = _get_current_function_mode
    if isinstance(current(), _Seeing):
        with _pop_mode_temporarily():
            yield
    else:
        yield


def _is_transformed(tensor: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _nodes(entry: Entry) -> tuple[fx.Node, fx.Node]:
    return entry.first, entry.node
