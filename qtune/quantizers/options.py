"""The arguments that all observers share: their types, their checks, the signatures they add to."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypedDict

import torch

from qtune.dtype import QuantDType, qint4, qint8, qint16, quant_dtype
from qtune.errors import ArgumentError

GRIDS = (qint4, qint8, qint16)
"""The dtypes that have a scale, in the order of the rows of ``Observer.absmax``."""


class LastOptions(TypedDict, total=False):
    """The last of the arguments that every observer takes; ``Observer`` says what each means."""

    quant_min: int | None
    quant_max: int | None
    is_sync_quantize: bool
    factory_kwargs: Mapping[str, Any] | None
    channel_len: int | None


class CommonOptions(LastOptions, total=False):
    """All arguments that every observer takes."""

    averaging_constant: float
    ch_axis: int
    dtype: QuantDType | torch.dtype | str
    qscheme: torch.qscheme


def whole_signature(cls: type, settled: tuple[str, ...]) -> inspect.Signature:
    """The signature of ``cls`` with the arguments that its ``**options`` hands to the base class.

    Without ``*common`` those are taken by name only. ``settled``: what ``cls`` gives itself.
    """
    own = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    kinds = {parameter.kind for parameter in own}
    named = [p for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if inspect.Parameter.VAR_KEYWORD in kinds and cls.__base__ is not None:
        known = {p.name for p in named} | set(settled)
        inherited = inspect.signature(cls.__base__).parameters.values()
        handed_on = [p for p in inherited if p.name not in known]
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            handed_on = [p.replace(kind=p.KEYWORD_ONLY) for p in handed_on]
        named = sorted(named + handed_on, key=lambda p: p.kind)
    return inspect.Signature(named)


def grid_dtype(dtype: QuantDType | torch.dtype | str) -> QuantDType:
    """Return the dtype as one of ``GRIDS``; raise ``ArgumentError`` for any other."""
    grid = quant_dtype(dtype)
    if grid not in GRIDS:
        known = ", ".join(g.name for g in GRIDS)
        raise ArgumentError(
            f"expected a dtype with a scale of its own ({known}) but got {grid}; a qint32 output "
            "has no fake-quantize, leave it out of the qconfig"
        )
    return grid


def check_averaging(constant: float) -> None:
    """Raise ``ArgumentError`` unless 0 <= constant <= 1."""
    if not 0 <= constant <= 1:
        raise ArgumentError(f"averaging_constant: expected 0 to 1 but got {constant!r}")


def check_axis(ch_axis: int, channel_len: int | None) -> None:
    """Raise ``ArgumentError`` unless the axis is -1 or counts from the front, with its channels."""
    if not isinstance(ch_axis, int) or ch_axis < -1:
        raise ArgumentError(
            f"ch_axis: expected an axis from 0 on, or -1 for the whole tensor, but got {ch_axis!r}"
        )
    if ch_axis == -1 and channel_len not in {None, 1}:
        raise ArgumentError(f"channel_len: {channel_len} channels need a ch_axis from 0 on, not -1")


def check_scheme(qscheme: torch.qscheme, ch_axis: int) -> None:
    """Raise ``ArgumentError`` unless the scheme is symmetric and fits the axis."""
    if qscheme not in {torch.per_tensor_symmetric, torch.per_channel_symmetric}:
        raise ArgumentError(f"qscheme: the BPU is symmetric (zero point 0), got {qscheme}")
    if qscheme == torch.per_channel_symmetric and ch_axis == -1:
        raise ArgumentError("qscheme torch.per_channel_symmetric needs a ch_axis from 0 on")


def check_grid(dtype: QuantDType, low: int | None, high: int | None) -> None:
    """Raise ``ArgumentError`` unless the limits are the grid's own or absent."""
    for name, value, own in (("quant_min", low, dtype.qmin), ("quant_max", high, dtype.qmax)):
        if value is not None and value != own:
            raise ArgumentError(
                f"{name}: the grid of {dtype} is fixed at {dtype.qmin} to {dtype.qmax}, got {value}"
            )


def buffer_device(factory_kwargs: Mapping[str, Any] | None) -> torch.device | str | None:
    """The ``device`` of ``factory_kwargs``; raise ``ArgumentError`` for anything else in it."""
    given = dict(factory_kwargs or {})
    device: torch.device | str | None = given.pop("device", None)
    if given.pop("dtype", torch.float32) != torch.float32 or given:
        raise ArgumentError(
            f"factory_kwargs: expected a device (statistics are float32) but got {factory_kwargs}"
        )
    return device


def whole_number(name: str, value: object, low: int, high: int, why: str = "") -> int:
    """Return ``value`` if it is an int from ``low`` to ``high``; else raise ``ArgumentError``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentError(
            f"{name}: expected a whole number from {low} to {high}{why}, got {value!r}"
        )
    return value


def positive_number(name: str, value: object, high: float = float("inf")) -> float:
    """Return ``value`` if 0 < value <= high, finite; else raise ``ArgumentError``."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) <= high or float(value) == float("inf"):  # type: ignore[arg-type]
        upper = "" if high == float("inf") else f", up to {high:g}"
        raise ArgumentError(f"{name}: expected a positive, finite number{upper}, got {value!r}")
    return float(value)  # type: ignore[arg-type]
