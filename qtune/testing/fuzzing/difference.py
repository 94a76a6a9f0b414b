"""Two results of one call, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtune.report.words import counted


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two results differ most.

    ``output``: number of the result. ``index``: of the worst element, ``None`` where results have
    no common element (``kind`` says what differs: shape, dtype, an error). ``got`` and
    ``expected``: its values. ``distance``: in steps or, without a scale, as numbers. ``count`` of
    ``total`` elements are off. ``limit``: what was allowed.
    """

    kind: str
    output: int = 0
    index: tuple[int, ...] | None = None
    got: Any = None
    expected: Any = None
    distance: float = 0.0
    limit: float = 0.0
    count: int = 0
    total: int = 0

    def __str__(self) -> str:
        if self.index is None:
            return f"{self.kind}: got {self.got}, expected {self.expected}"
        return (
            f"output {self.output}{list(self.index)}: got {self.got}, expected {self.expected}; "
            f"{self.count} of {self.total} elements are off, {self.text} at most"
        )

    @property
    def headline(self) -> str:
        """What a summary has room for."""
        return self.kind if self.index is None else f"{self.text} off"

    @property
    def text(self) -> str:
        """The largest distance with its unit."""
        return (
            counted(f"{self.distance:g}", "step") if self.kind == "steps" else f"{self.distance:g}"
        )


def first_difference(
    got: Sequence[Tensor],
    expected: Sequence[Tensor],
    steps: Sequence[float | None] | None = None,
    limit: float = 0.0,
) -> Difference | None:
    """The first result that is further off than allowed.

    ``steps``: the scale of each result; its distance is counted in them and may reach ``limit``.
    Results without a scale, and all where ``steps`` is ``None``, must be equal; NaN equals NaN.
    """
    if len(got) != len(expected):
        return Difference("number of results", got=len(got), expected=len(expected))
    known = steps if steps is not None else (None,) * len(got)
    for number, (left, right, step) in enumerate(zip(got, expected, known, strict=True)):
        found = _between(number, left, right, step, limit)
        if found is not None:
            return found
    return None


def _between(
    number: int, left: Tensor, right: Tensor, step: float | None, limit: float
) -> Difference | None:
    if left.dtype != right.dtype:
        return Difference("dtype", number, got=left.dtype, expected=right.dtype)
    if left.shape != right.shape:
        return Difference("shape", number, got=tuple(left.shape), expected=tuple(right.shape))
    if torch.equal(left, right) or not left.numel():
        return None
    a, b = left.double(), right.double()
    gap = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    gap = torch.nan_to_num(gap, nan=float("inf"), posinf=float("inf")) / (step or 1.0)
    bad = gap > (limit if step is not None else 0.0)
    if not bool(bad.any()):
        return None
    index = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), tuple(left.shape)))
    return Difference(
        "steps" if step is not None else "value",
        number,
        index,
        left[index].item(),
        right[index].item(),
        float(gap.max()),
        limit if step is not None else 0.0,
        int(bad.sum()),
        left.numel(),
    )
