"""The public quantization API under the toolchain's names.

The way of a model: ``prepare``, ``set_fake_quantize(model, FakeQuantState.CALIBRATION)``, data,
``set_fake_quantize(model, FakeQuantState.VALIDATION)``, ``hbdk4.export``, ``hbdk4.convert``.
"""

from qtune.check.march import check_model
from qtune.modes import QATMode, get_qat_mode, set_qat_mode
from qtune.qconfig.qconfig import QConfig, get_default_qconfig, get_qconfig
from qtune.qconfig.setter import QconfigSetter
from qtune.quantization import hbdk4, observer_v2, qconfig, qconfig_setter
from qtune.quantization.calibrate import auto_calibrate, load_calib_state_dict
from qtune.quantization.pipeline import PrepareMethod, prepare
from qtune.quantization.stubs import DeQuantStub, FloatFunctional, QuantStub
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

__all__ = [
    "DeQuantStub",
    "FakeCast",
    "FakeQuantState",
    "FakeQuantize",
    "FloatFunctional",
    "PrepareMethod",
    "QATMode",
    "QConfig",
    "QconfigSetter",
    "QuantStub",
    "auto_calibrate",
    "check_model",
    "get_default_qconfig",
    "get_qat_mode",
    "get_qconfig",
    "hbdk4",
    "load_calib_state_dict",
    "observer_v2",
    "prepare",
    "qconfig",
    "qconfig_setter",
    "set_fake_quantize",
    "set_qat_mode",
]
