"""Facade: the older functional tools under the toolchain's import path."""

from qtune.analysis.model_profiler import model_profiler
from qtune.analysis.similarity import featuremap_similarity
from qtune.check.called import get_module_called_count
from qtune.check.deploy_device import check_deploy_device
from qtune.check.qconfig_info import check_qconfig
from qtune.profiler.featuremap import profile_featuremap
from qtune.profiler.memory import show_cuda_memory_consumption
from qtune.profiler.raw_features import get_raw_features
from qtune.profiler.scripts import compare_script_models, script_profile
from qtune.profiler.weights import compare_weights
from qtune.quantization.convert import set_preserve_qat_mode
from qtune.quantization.unfused import check_unfused_operations

__all__ = [
    "check_deploy_device",
    "check_qconfig",
    "check_unfused_operations",
    "compare_script_models",
    "compare_weights",
    "featuremap_similarity",
    "get_module_called_count",
    "get_raw_features",
    "model_profiler",
    "profile_featuremap",
    "script_profile",
    "set_preserve_qat_mode",
    "show_cuda_memory_consumption",
]
