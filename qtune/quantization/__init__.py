"""The public quantization API under the toolchain's names.

The way of a model: ``prepare``, ``set_fake_quantize(model, FakeQuantState.CALIBRATION)``, data,
``set_fake_quantize(model, FakeQuantState.VALIDATION)``, ``hbdk4.export``, ``hbdk4.convert``.
"""

from typing import Any

from qtune.modes import FuseMode, QATMode, get_qat_mode, set_qat_mode
from qtune.nn.eager import as_graph
from qtune.ops.elementwise.float_functional import FloatFunctional
from qtune.ops.quant.stubs import DeQuantStub, QuantStub
from qtune.prepare.absorb import absorb_bn
from qtune.prepare.fuse_modules import fuse_known_modules, fuse_modules
from qtune.prepare.pipeline import PrepareMethod, prepare
from qtune.qconfig.explain import Explanation, explain
from qtune.qconfig.predefined import (
    RECIPES,
    get_default_calib_qconfig,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    predefined,
)
from qtune.qconfig.qconfig import QConfig, get_default_qconfig, get_qconfig
from qtune.qconfig.setter import QconfigSetter
from qtune.quantization import hbdk4, observer_v2, qconfig, qconfig_setter, qconfig_template
from qtune.quantization.calibrate import (
    auto_calibrate,
    load_calib_state_dict,
    load_observer_params,
)
from qtune.quantization.convert import convert, convert_fx, set_preserve_qat_mode
from qtune.quantization.deploy import (
    check_model,
    compile_model,
    export_hbir,
    perf_model,
    visualize_model,
)
from qtune.quantization.freeze import freeze_qat_module, operators_in
from qtune.quantization.prepare_qat import (
    fuse_fx,
    prepare_calibration,
    prepare_calibration_fx,
    prepare_qat,
    prepare_qat_fx,
)
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.lsq import _LearnableFakeQuantize
from qtune.quantizers.observer import (
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from qtune.quantizers.pact import PACTFakeQuantize
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

__all__ = [
    "DeQuantStub",
    "Explanation",
    "FakeCast",
    "FakeQuantState",
    "FakeQuantize",
    "FloatFunctional",
    "FuseMode",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "PACTFakeQuantize",
    "PrepareMethod",
    "QATMode",
    "QConfig",
    "QconfigSetter",
    "QuantStub",
    "_LearnableFakeQuantize",
    "absorb_bn",
    "as_graph",
    "auto_calibrate",
    "check_model",
    "compile_model",
    "convert",
    "convert_fx",
    "export_hbir",
    "freeze_qat_module",
    "fuse_fx",
    "fuse_known_modules",
    "fuse_modules",
    "explain",
    "get_default_calib_qconfig",
    "get_default_qat_out_qconfig",
    "get_default_qat_qconfig",
    "get_default_qconfig",
    "get_qat_mode",
    "get_qconfig",
    "hbdk4",
    "load_calib_state_dict",
    "load_observer_params",
    "observer_v2",
    "operators_in",
    "perf_model",
    "prepare",
    "prepare_calibration",
    "prepare_calibration_fx",
    "prepare_qat",
    "prepare_qat_fx",
    "qconfig",
    "qconfig_setter",
    "qconfig_template",
    "set_fake_quantize",
    "set_preserve_qat_mode",
    "set_qat_mode",
    "visualize_model",
]


def __getattr__(name: str) -> Any:
    """The ready-made qconfigs, which the documents also take from here."""
    if name in RECIPES:
        return predefined(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
