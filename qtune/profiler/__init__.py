"""What are the numbers: metrics, and the results that analysis writes to disk.

Importing this package lets ``torch.load`` read these results with its safe default.
``QuantAnalysis`` and the older functional tools are served from here as in the toolchain.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import Any

import torch

from qtune.check.called import get_module_called_count
from qtune.check.deploy_device import check_deploy_device
from qtune.check.qconfig_info import check_qconfig
from qtune.profiler.bad_case_report import BadCaseReport
from qtune.profiler.featuremap import profile_featuremap
from qtune.profiler.memory import show_cuda_memory_consumption
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.op_files import read_profile
from qtune.profiler.op_info import OpInfo, TensorInfo
from qtune.profiler.profiling import HbirModelProfiler, ModelProfiler
from qtune.profiler.raw_features import get_raw_features
from qtune.profiler.running_info import OpRunningInfoManager
from qtune.profiler.scripts import compare_script_models, script_profile
from qtune.profiler.sensitivity_table import SensitivityTable
from qtune.profiler.tune_front import Budget, TuneFront, TunePoint
from qtune.profiler.tuned_tables import TunedTables
from qtune.profiler.weights import compare_weights
from qtune.quantization.convert import set_preserve_qat_mode
from qtune.quantization.unfused import check_unfused_operations

__all__ = [
    "BadCaseReport",
    "Budget",
    "HbirModelProfiler",
    "Metric",
    "MetricInfo",
    "ModelProfiler",
    "OpInfo",
    "OpRunningInfoManager",
    "QuantAnalysis",  # noqa: F822 - served by __getattr__
    "SensitivityTable",
    "TensorInfo",
    "TuneFront",
    "TunePoint",
    "TunedTables",
    "check_deploy_device",
    "check_qconfig",
    "check_unfused_operations",
    "compare_script_models",
    "compare_weights",
    "featuremap_similarity",  # noqa: F822 - served by __getattr__
    "get_module_called_count",
    "get_raw_features",
    "model_profiler",  # noqa: F822 - served by __getattr__
    "profile_featuremap",
    "read_profile",
    "script_profile",
    "set_preserve_qat_mode",
    "show_cuda_memory_consumption",
    "tune",  # noqa: F822 - served by __getattr__
]

_ABOVE = MappingProxyType(
    {
        "QuantAnalysis": "quant_analysis",
        "featuremap_similarity": "similarity",
        "model_profiler": "model_profiler",
        "tune": "tune",
    }
)
"""What ``qtune.analysis`` has and the toolchain serves from here: name -> module."""

torch.serialization.add_safe_globals(
    [
        BadCaseReport,
        Budget,
        OpInfo,
        SensitivityTable,
        TensorInfo,
        TuneFront,
        TunePoint,
        TunedTables,
    ]
)


def __getattr__(name: str) -> Any:
    if name in _ABOVE:  # lazily, and not by an import statement: they lie above this layer
        return getattr(importlib.import_module(f"qtune.analysis.{_ABOVE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
