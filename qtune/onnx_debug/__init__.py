"""The ONNX debugger: calibrated ONNX models, and which node costs the accuracy."""

from __future__ import annotations

from qtune.lazy import importer

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

__all__ = list(_EXPORTS)  # noqa: PLE0605 - derived from the table above
__getattr__ = importer(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
