"""Checks of what a caller passes to an assertion; each raises ``ArgumentError`` naming it."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import numpy as np
from torch import nn

from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import Model

Number = int | float | np.integer[Any] | np.floating[Any]


def is_number(value: Any) -> TypeGuard[Number]:
    """A real number of Python or NumPy; a bool is none."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def check_limit(check: str, name: str, value: Any) -> float:
    """A bound as a float. NaN is refused: nothing is ever within it."""
    try:
        bound = float(value) if is_number(value) else math.nan
    except OverflowError:
        raise ArgumentError(f"{check}: {name} is too large for a float") from None
    if math.isnan(bound):
        raise ArgumentError(
            f"{check}: {name} must be a number but got {value!r} (type={type(value).__name__})"
        )
    return bound


def check_switch(check: str, name: str, value: Any) -> bool:
    """A bool, and nothing that only counts as one."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{check}: {name} must be a bool but got {value!r}")
    return value


def check_model(check: str, name: str, value: Any) -> Model:
    """A model of any stage: a torch module or an HBIR module."""
    if isinstance(value, nn.Module | HbirModule):
        return value
    raise ArgumentError(
        f"{check}: {name} must be a torch module or an HBIR module, such as stages.calib or "
        f"stages.quantized_bc, but got {_type(value)}"
    )


def check_hbir(check: str, name: str, value: Any) -> HbirModule:
    """An HBIR module."""
    if isinstance(value, HbirModule):
        return value
    raise ArgumentError(
        f"{check}: {name} must be an HBIR module (stages.qat_bc or stages.quantized_bc) but got "
        f"{_type(value)}"
    )


def check_prepared(check: str, value: Any) -> PreparedModel:
    """A model that ``prepare`` made."""
    if isinstance(value, PreparedModel):
        return value
    raise ArgumentError(
        f"{check}: expected a model made by prepare, such as stages.calib, but got {_type(value)}"
    )


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
