"""Checks of what a caller passes to an assertion; each raises ``ArgumentError`` naming it."""

from __future__ import annotations

import math
from os import PathLike
from typing import Any, TypeGuard

import numpy as np
import onnx
from torch import nn

from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.profiler.observe import Model
from qtune.testing.onnx_model import CALIBRATED, OnnxModel, as_model, stage_error

Onnx = str | PathLike[str] | onnx.ModelProto | OnnxModel
"""A path (.onnx, .bc, .hbm), a ``ModelProto``, or what ``OnnxStages`` gives."""
OnnxCalibrated = Onnx
"""The same, where it has to be calibrated."""
OnnxPath = Onnx
"""The same, where it can only be the path of a module or a program."""
OnnxGraph = Onnx
"""The same, where it has to be optimized or calibrated."""
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


def check_model(check: str, name: str, value: Any) -> Model | OnnxModel:
    """A model of any stage: a torch module, an HBIR module or an ONNX model."""
    model = as_model(check, name, value)
    if isinstance(model, nn.Module | HbirModule | OnnxModel):
        return model
    raise ArgumentError(
        f"{check}: {name} must be a torch module or an HBIR module, such as stages.calib or "
        f"stages.quantized_bc, or an ONNX model, but got {_type(model)}"
    )


def check_hbir(check: str, name: str, value: Any) -> HbirModule:
    """An HBIR module."""
    value = as_model(check, name, value)
    if isinstance(value, HbirModule):
        return value
    if isinstance(value, OnnxModel):
        expected = "an HBIR module or a .bc file (stages.qat_bc or stages.quantized_bc)"
        raise stage_error(check, name, value, expected)
    raise ArgumentError(
        f"{check}: {name} must be an HBIR module (stages.qat_bc or stages.quantized_bc) but got "
        f"{_type(value)}"
    )


def check_calibrated(check: str, model: OnnxModel) -> OnnxModel:
    """An ONNX model with calibration nodes."""
    if model.kind == CALIBRATED:
        return model
    expected = "a calibrated model (stages.calibrated, or *_calibrated_model.onnx)"
    raise stage_error(check, "", model, expected)


def check_prepared(check: str, value: Any) -> PreparedModel:
    """A model that ``prepare`` made."""
    if isinstance(value, PreparedModel):
        return value
    raise ArgumentError(
        f"{check}: expected a model made by prepare, such as stages.calib, but got {_type(value)}"
    )


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
