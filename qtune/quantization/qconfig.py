"""Facade: qconfigs under the toolchain's path, the ready-made ones made when first asked for."""

from typing import Any

from qtune.qconfig.predefined import (
    RECIPES,
    get_default_calib_qconfig,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    predefined,
)
from qtune.qconfig.qconfig import QConfig, get_default_qconfig, get_qconfig

__all__ = [
    "QConfig",
    "default_calib_16bit_fake_quant_qconfig",  # noqa: F822 - __getattr__ serves these
    "default_calib_8bit_fake_quant_qconfig",  # noqa: F822
    "default_calib_8bit_weight_16bit_act_fake_quant_qconfig",  # noqa: F822
    "default_calib_8bit_weight_32bit_out_fake_quant_qconfig",  # noqa: F822
    "default_calib_out_8bit_fake_quant_qconfig",  # noqa: F822
    "default_qat_16bit_fake_quant_qconfig",  # noqa: F822
    "default_qat_8bit_fake_quant_qconfig",  # noqa: F822
    "default_qat_8bit_fixed_act_fake_quant_qconfig",  # noqa: F822
    "default_qat_8bit_lsq_quant_qconfig",  # noqa: F822
    "default_qat_8bit_weight_16bit_act_fake_quant_qconfig",  # noqa: F822
    "default_qat_8bit_weight_16bit_fixed_act_fake_quant_qconfig",  # noqa: F822
    "default_qat_8bit_weight_32bit_out_fake_quant_qconfig",  # noqa: F822
    "default_qat_out_8bit_fake_quant_qconfig",  # noqa: F822
    "get_default_calib_qconfig",
    "get_default_qat_out_qconfig",
    "get_default_qat_qconfig",
    "get_default_qconfig",
    "get_qconfig",
]


def __getattr__(name: str) -> Any:
    if name in RECIPES:
        return predefined(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
