"""The ONNX debugger: calibrated ONNX models, and which node costs the accuracy."""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "BuildResult": "build.result",
    "CalibrationDataSet": "data",
    "build_model": "build.model",
    "check_model": "build.model",
    "get_channelwise_data_distribution": "channels",
    "get_sensitivity_of_nodes": "sensitivity",
    "insert_calibration": "build.model",
    "load_calibrated": "load",
    "plot_acc_error": "accumulated",
    "plot_distribution": "distribution",
    "runall": "runall_steps",
    "sensitivity_analysis": "freed",
    "tensor_analysis": "tensors",
}
"""Public name -> the module that has it; loaded when first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
