"""What has to be replaced while a model is recorded, because no torch mode sees it.

All of it is undone afterwards, and other threads keep torch's own behaviour meanwhile.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

_ONE_AT_A_TIME = threading.RLock()


class Handlers(Protocol):
    """What a recording does with the calls that no mode sees."""

    @property
    def recording(self) -> bool:
        """Whether the model's own code is running now."""

    def module(self, module: nn.Module, args: Any, kwargs: Any, original: Any) -> Any:
        """``module(*args, **kwargs)``; ``original`` is ``nn.Module.__call__``."""

    def training(self, module: nn.Module, value: bool) -> Any:
        """``module.training``."""

    def function(self, cls: type, args: Any, kwargs: Any, original: Any) -> Any:
        """``cls.apply(*args, **kwargs)`` of a ``torch.autograd.Function``."""

    def scripted(self, function: Any, args: Any, kwargs: Any, original: Any) -> Any:
        """A call of a scripted function."""

    def thread(self) -> None:
        """Another thread is given something to do."""

    def length(self, tensor: Tensor) -> Any:
        """``len(tensor)``."""

    def seed(self) -> None:
        """``torch.manual_seed(...)``."""

    def broadcast(self, shapes: Any, original: Any) -> Any:
        """``torch.broadcast_shapes(*shapes)``."""


@contextmanager
def installed(handlers: Handlers) -> Iterator[None]:
    """Route these calls of this thread to ``handlers`` until the block ends."""
    own = threading.get_ident()

    def active() -> bool:
        return handlers.recording and threading.get_ident() == own

    with _ONE_AT_A_TIME, ExitStack() as stack:
        for owner, name, value in (
            (nn.Module, "__call__", _module_call(handlers, active)),
            (nn.Module, "training", _training(handlers, active)),
            (torch.autograd.Function, "apply", _apply(handlers, active)),
            (torch.jit.ScriptFunction, "__call__", _scripted(handlers, active)),
            (torch, "broadcast_shapes", _broadcast(handlers, active)),
            (torch, "manual_seed", _seed(handlers, active)),
            (torch.random, "manual_seed", _seed(handlers, active)),
            (threading.Thread, "start", _threads(threading.Thread.start, handlers, active)),
            (ThreadPoolExecutor, "submit", _threads(ThreadPoolExecutor.submit, handlers, active)),
            # len() insists on a real int, so Tensor.__len__ alone can't answer with a size
            (builtins, "len", _length(handlers, active)),
        ):
            stack.enter_context(_replaced(owner, name, value))
        if "torch._dynamo" in sys.modules:  # only then there can be a compiled module or function
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _module_call(handlers: Handlers, active: Callable[[], bool]) -> Callable[..., Any]:
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not active():
            return original(module, *args, **kwargs)
        return handlers.module(module, args, kwargs, original)

    return call


def _training(handlers: Handlers, active: Callable[[], bool]) -> property:
    def get(module: nn.Module) -> Any:
        state = vars(module)
        if "training" not in state:  # scripted modules keep it elsewhere
            return type(module).__getattr__(module, "training")
        return handlers.training(module, state["training"]) if active() else state["training"]

    def put(module: nn.Module, value: Any) -> None:
        vars(module)["training"] = value

    return property(get, put)


def _apply(handlers: Handlers, active: Callable[[], bool]) -> Any:
    original = vars(torch.autograd.Function)["apply"].__func__

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if not active():
            return original(cls, *args, **kwargs)
        return handlers.function(cls, args, kwargs, original)

    return classmethod(apply)


def _scripted(handlers: Handlers, active: Callable[[], bool]) -> Callable[..., Any]:
    original = torch.jit.ScriptFunction.__call__

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not active():
            return original(function, *args, **kwargs)
        return handlers.scripted(function, args, kwargs, original)

    return call


def _broadcast(handlers: Handlers, active: Callable[[], bool]) -> Callable[..., Any]:
    original: Callable[..., Any] = torch.broadcast_shapes

    def broadcast(*shapes: Any) -> Any:
        return handlers.broadcast(shapes, original) if active() else original(*shapes)

    return broadcast


def _seed(handlers: Handlers, active: Callable[[], bool]) -> Callable[[int], Any]:
    original = torch.manual_seed

    def seed(value: int) -> Any:
        if active():
            handlers.seed()
        return original(value)

    return seed


def _threads(
    original: Callable[..., Any], handlers: Handlers, active: Callable[[], bool]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if active():
            handlers.thread()
        return original(*args, **kwargs)

    return call


def _length(handlers: Handlers, active: Callable[[], bool]) -> Callable[[Any], Any]:
    original = builtins.len

    def length(value: Any) -> Any:
        if isinstance(value, Tensor) and active():
            return handlers.length(value)
        return original(value)

    return length
