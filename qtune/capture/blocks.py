"""Dynamic blocks: parts of a forward that run a varying number of times.

``with dynamic_block(self, "refine"):`` around the body of a loop says that every run of the body is
the same operators. Recording then gives the functions in it the block's names, the same in each
run, and lets prepare fuse what is in it, though its modules are called several times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn

from qtune.capture.handlers import ModelHandlers
from qtune.errors import ArgumentError

_recording: ContextVar[ModelHandlers | None] = ContextVar("recording", default=None)


@contextmanager
def recording_by(handlers: ModelHandlers) -> Iterator[None]:
    """Dynamic blocks that are entered meanwhile are noted by ``handlers``."""
    token = _recording.set(handlers)
    try:
        yield
    finally:
        _recording.reset(token)


@contextmanager
def dynamic_block(module: nn.Module, name: str) -> Iterator[None]:
    """One run of the block ``name`` of ``module``; without effect unless the model is recorded.

    Raises ``ArgumentError`` for a module that is none, or a name that is no identifier.
    """
    if not isinstance(module, nn.Module) or not (isinstance(name, str) and name.isidentifier()):
        raise ArgumentError(
            "Tracer.dynamic_block(module, name): a module and the block's name, an identifier, "
            f"were expected, got {type(module).__name__} and {name!r}"
        )
    handlers = _recording.get()
    if handlers is None or not handlers.recording:
        yield
        return
    path = handlers.names.get(id(module), "")
    with handlers.tape.block(f"{path}.{name}" if path else name):
        yield
