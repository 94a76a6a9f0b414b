"""What an observer of a running HBIR function gets for each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from qtune.hbir.module import Function


@dataclass(frozen=True, slots=True)
class OpResult:
    """The final result of one operator.

    ``values``: real numbers, float32 (bool and integer results as they are), the shape torch has.
    ``codes``: plain integer codes (int8, int16 or int32), ``None`` for floats and in a qat module.
    ``scale``: ``None`` for a result that is no quantized number. ``dtype``: ``qint8``, ``qint16``,
    ``torch.float32``, ``torch.bool``, ...
    """

    name: str
    values: torch.Tensor
    codes: torch.Tensor | None
    scale: float | None
    dtype: str


class Observer(Protocol):
    """Called with the operator's name and its result, in order of execution."""

    def __call__(self, name: str, result: OpResult, /) -> None:
        """Take one result."""


Watch = Callable[[Sequence[Any]], AbstractContextManager[Observer]]
"""Gives what one run shows its results to, for its input tensors, and ends with the run."""


@contextmanager
def watched(function: Function, watch: Watch) -> Iterator[None]:
    """Every run of ``function`` in the block shows its results to what ``watch(inputs)`` gives."""
    before = function._watch
    function._watch = watch
    try:
        yield
    finally:
        function._watch = before
