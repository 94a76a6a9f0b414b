"""``SegmentLUT``: a function of the user's as a look-up table, and how its knobs are read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.arith.rounding import FloatArray
from qtune.arith.segments import SegmentOptions
from qtune.errors import ArgumentError

TABLE_OPTIONS = "table_options"
"""Attribute of a table operator that holds its :class:`SegmentOptions`."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A user's function of a tensor; it is printed by its name, the same in every process."""

    function: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Call it; a result of another shape is no element-wise function."""
        y = self.function(x)
        if isinstance(y, torch.Tensor) and y.shape == x.shape:
            return y
        got = tuple(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__
        raise ArgumentError(
            f"{self}: a table needs an element-wise function of a tensor; for an input of shape "
            f"{tuple(x.shape)} it returned {got}"
        )

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True, slots=True)
class RealInverse:
    """An ``inverse_func`` on float64 arrays."""

    function: Elementwise

    def __call__(self, y: FloatArray) -> FloatArray:
        """Evaluate it in float64."""
        with torch.no_grad():
            x = self.function(torch.from_numpy(np.array(y, dtype=np.float64)))
        return np.asarray(x.detach().numpy(), dtype=np.float64)

    def __repr__(self) -> str:
        return repr(self.function)


class SegmentLUT(nn.Module):
    """An element-wise function that becomes a look-up table when it is quantized.

    In float it runs ``simulated_func(x)``, a function of one floating tensor of any shape. With a
    qint8 input it becomes a table of 256 entries, with a qint16 one a table of up to 64 segments of
    64 entries, linear between them, to which the other arguments apply:

    ``dividing_points``: upper bounds of the segments, rising, 64 at most, as values of the input;
    the last one is the end of the table. ``input_range``: (low, high) that the table covers in
    place of the range that calibration saw. ``auto_divide_strategy``: how dividing points are
    found, ``"evenly"``, ``"curvature"`` or the better of both, ``"mix"``. ``symmetric_mode``:
    ``"centrosymmetric"`` (``f(-x) = -f(x)``) or ``"axisymmetric"`` (``f(-x) = f(x)``): segments for
    the half from 0 on, and its mirror image. ``is_centrosymmetric``: the deprecated form of the
    former. ``inverse_func``: the inverse of a decreasing ``simulated_func``; inputs whose results
    lie beyond the output's grid are then left out of the table. Outside of a table's range the
    value at its end holds.

    Raises ``ArgumentError`` for arguments that contradict each other or have no meaning.

    >>> SegmentLUT(torch.tanh, symmetric_mode="centrosymmetric")(torch.zeros(2))
    tensor([0., 0.])
    """

    def __init__(
        self,
        simulated_func: Callable[[torch.Tensor], torch.Tensor],
        is_centrosymmetric: bool = False,
        symmetric_mode: str | None = None,
        dividing_points: Any = None,
        input_range: Any = None,
        auto_divide_strategy: str = "mix",
        inverse_func: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        if not callable(simulated_func):
            raise ArgumentError(
                f"SegmentLUT: simulated_func must be a function of a tensor, got {simulated_func!r}"
            )
        self.simulated_func = Elementwise(simulated_func)
        self.table_options = segment_options(
            "SegmentLUT",
            {
                "is_centrosymmetric": is_centrosymmetric,
                "symmetric_mode": symmetric_mode,
                "dividing_points": dividing_points,
                "input_range": input_range,
                "auto_divide_strategy": auto_divide_strategy,
                "inverse_func": inverse_func,
            },
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``simulated_func(x)``."""
        return self.simulated_func(x)

    def extra_repr(self) -> str:
        """The function, and the arguments that are not the defaults."""
        default, options = SegmentOptions(), self.table_options
        given = ((name, getattr(options, name)) for name in SegmentOptions.__slots__)
        texts = [f"{n}={value}" for n, value in given if value != getattr(default, n)]
        return ", ".join([repr(self.simulated_func), *texts])


def segment_options(where: str, knobs: Mapping[str, Any]) -> SegmentOptions:
    """The options of a table from keyword arguments of ``SegmentLUT``; errors name ``where``."""
    if not are_knobs(knobs):
        known = ", ".join(_knob_names())
        raise ArgumentError(f"{where}: expected a dict with keys out of {known}; got {knobs!r}")
    try:
        return SegmentOptions(
            strategy=knobs.get("auto_divide_strategy", "mix"),
            dividing_points=_numbers("dividing_points", knobs.get("dividing_points")),
            input_range=_numbers("input_range", knobs.get("input_range")),  # type: ignore[arg-type]
            symmetric_mode=_symmetric_mode(where, knobs),
            inverse_func=_inverse(knobs.get("inverse_func")),
        )
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from None


def are_knobs(value: Any) -> bool:
    """Whether ``value`` is a dict of keyword arguments of ``SegmentLUT``."""
    return isinstance(value, Mapping) and set(value) <= set(_knob_names())


def _knob_names() -> list[str]:
    return list(signature(SegmentLUT.__init__).parameters)[2:]


def _symmetric_mode(where: str, knobs: Mapping[str, Any]) -> str | None:
    mode: str | None = knobs.get("symmetric_mode")
    if not knobs.get("is_centrosymmetric", False):
        return mode
    warnings.warn(
        f'{where}: is_centrosymmetric is deprecated; write symmetric_mode="centrosymmetric"',
        DeprecationWarning,
        stacklevel=4,
    )
    if mode not in (None, "centrosymmetric"):
        raise ArgumentError(f"is_centrosymmetric contradicts symmetric_mode={mode!r}")
    return "centrosymmetric"


def _numbers(name: str, values: Any) -> tuple[float, ...] | None:
    if values is None:
        return None
    try:
        return tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} must be a sequence of numbers, got {values!r}") from None


def _inverse(function: Any) -> RealInverse | None:
    if function is None:
        return None
    if not callable(function):
        raise ArgumentError(f"inverse_func must be a function of a tensor, got {function!r}")
    return RealInverse(Elementwise(function))
