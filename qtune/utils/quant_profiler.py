"""Facade: the older structure checks under the toolchain's import path."""

from qtune.check.called import get_module_called_count
from qtune.check.deploy_device import check_deploy_device
from qtune.check.qconfig_info import check_qconfig
from qtune.quantization.convert import set_preserve_qat_mode
from qtune.quantization.unfused import check_unfused_operations

__all__ = [
    "check_deploy_device",
    "check_qconfig",
    "check_unfused_operations",
    "get_module_called_count",
    "set_preserve_qat_mode",
]
