"""What are the numbers: metrics, and the results that analysis writes to disk.

Importing this package lets ``torch.load`` read these results with its safe default.
``QuantAnalysis`` is served from here as in the toolchain.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.op_info import OpInfo
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.profiler.tune_front import Budget, TuneFront, TunePoint
from qtune.profiler.tuned_tables import TunedTables
from qtune.quantization.convert import set_preserve_qat_mode

__all__ = [
    "BadCaseReport",
    "Budget",
    "Metric",
    "MetricInfo",
    "OpInfo",
    "QuantAnalysis",  # noqa: F822 - served by __getattr__
    "SensitivityTable",
    "TuneFront",
    "TunePoint",
    "TunedTables",
    "set_preserve_qat_mode",
    "tune",  # noqa: F822 - served by __getattr__
]

torch.serialization.add_safe_globals(
    [BadCaseReport, Budget, OpInfo, SensitivityTable, TuneFront, TunePoint, TunedTables]
)


def __getattr__(name: str) -> Any:
    if name == "QuantAnalysis":  # lazily, and not by an import statement: it lies above this layer
        return importlib.import_module("qtune.analysis.quant_analysis").QuantAnalysis
    if name == "tune":
        return importlib.import_module("qtune.analysis.tune").tune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
