from qtune.dtype import qint8, qint16
from qtune.qconfig.qconfig import QConfig, get_qconfig
from qtune.qconfig.templates import ConvDtypeTemplate, ModuleNameTemplate
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.mse import MSEObserver
from tests.qconfig.nets import (
    chain,
    solve,
)

ALL_INT8 = ModuleNameTemplate({"": qint8})


def test_module_qconfig_beats_every_template():
    own = QConfig(
        weight=FakeQuantize.with_args(observer=MSEObserver, dtype=qint8),
        output=FakeQuantize.with_args(observer=MSEObserver, dtype=qint16),
    )
    views = chain(conv1={"module_qconfig": own, "module_qconfig_path": "conv1"})
    result = solve(views, ModuleNameTemplate({"": qint8, "relu1": qint8}, freeze=True))
    plan = result.plans["relu1"].output
    assert plan.dtype is qint16
    assert plan.rule == "module.qconfig of conv1"
    assert type(plan.make().activation_post_process) is MSEObserver
    assert type(result.plans["conv1"].weight.make(4, 0).activation_post_process) is MSEObserver


def test_module_qconfig_none_keeps_float():
    views = chain(conv2={"module_qconfig": None, "module_qconfig_path": "conv2"})
    result = solve(views, ModuleNameTemplate({"": qint8}, freeze=True), ConvDtypeTemplate())
    assert result.plans["conv2"].float_reason == "module.qconfig of conv2 is None"


def test_nearest_module_qconfig_decides_for_the_group():
    wide, narrow = get_qconfig(out_dtype=qint16), get_qconfig()
    views = chain(
        conv1={"module_qconfig": wide, "module_qconfig_path": "conv1"},
        relu1={"module_qconfig": narrow, "module_qconfig_path": ""},
    )
    assert solve(views, ALL_INT8).plans["relu1"].output.dtype is qint16


def test_module_qconfig_without_output_is_high_precision():
    """qat_article: the out qconfig of the last conv; one with an output is never changed."""
    out = get_qconfig(out_dtype=None)
    views = chain(conv2={"module_qconfig": out, "module_qconfig_path": "conv2"})
    assert solve(views, ALL_INT8).plans["conv2"].high_precision
    views = chain(conv2={"module_qconfig": get_qconfig(), "module_qconfig_path": ""})
    assert solve(views, ALL_INT8).plans["conv2"].output.dtype is qint8


def test_module_qconfig_input():
    own = get_qconfig(in_dtype=qint16)
    views = chain(conv1={"module_qconfig": own, "module_qconfig_path": "conv1"})
    assert solve(views, ALL_INT8).plans["conv1"].inputs[0].dtype is qint16


def test_module_qconfig_without_weight_keeps_the_gemm_float():
    own = get_qconfig(weight_dtype=None)
    views = chain(conv2={"module_qconfig": own, "module_qconfig_path": "conv2"})
    reason = solve(views, ALL_INT8).plans["conv2"].float_reason
    assert reason == "weight kept float by module.qconfig of conv2"
