"""Facade: the older setters under the toolchain's path."""

from qtune.qconfig.old_setters import (
    ModuleNameQconfigSetter,
    calibration_8bit_weight_16bit_act_qconfig_setter,
    default_calibration_qconfig_setter,
    default_qat_fixed_act_qconfig_setter,
    default_qat_qconfig_setter,
    qat_8bit_weight_16bit_act_qconfig_setter,
    qat_8bit_weight_16bit_fixed_act_qconfig_setter,
    sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter,
    sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter,
    sensitive_op_qat_8bit_weight_16bit_fixed_act_qconfig_setter,
)

__all__ = [
    "ModuleNameQconfigSetter",
    "calibration_8bit_weight_16bit_act_qconfig_setter",
    "default_calibration_qconfig_setter",
    "default_qat_fixed_act_qconfig_setter",
    "default_qat_qconfig_setter",
    "qat_8bit_weight_16bit_act_qconfig_setter",
    "qat_8bit_weight_16bit_fixed_act_qconfig_setter",
    "sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter",
    "sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter",
    "sensitive_op_qat_8bit_weight_16bit_fixed_act_qconfig_setter",
]
