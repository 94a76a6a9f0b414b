"""What an observer of a running HBIR function gets for each operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


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
