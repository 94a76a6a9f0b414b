"""The guide's ways to say who gets which dtype: attribute, templates, sensitivity, by name."""

import copy

import torch
from horizon_plugin_profiler import QuantAnalysis
from horizon_plugin_pytorch import March, qint8, qint16, set_march
from horizon_plugin_pytorch.quantization import FakeQuantState, prepare_qat_fx, set_fake_quantize
from horizon_plugin_pytorch.quantization.qconfig import (
    default_calib_8bit_fake_quant_qconfig,
    default_calib_8bit_weight_16bit_act_fake_quant_qconfig,
    default_calib_8bit_weight_32bit_out_fake_quant_qconfig,
    default_qat_8bit_fake_quant_qconfig,
    default_qat_8bit_fixed_act_fake_quant_qconfig,
    default_qat_8bit_lsq_quant_qconfig,
    default_qat_8bit_weight_16bit_act_fake_quant_qconfig,
    default_qat_8bit_weight_16bit_fixed_act_fake_quant_qconfig,
    default_qat_8bit_weight_32bit_out_fake_quant_qconfig,
    get_default_qconfig,
)
from horizon_plugin_pytorch.quantization.qconfig_template import (
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
from torch import nn
from torch.quantization import DeQuantStub, QuantStub


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.op_1, self.op_2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.relu, self.head = nn.ReLU(), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.dequant(self.head(self.relu(self.op_2(self.op_1(self.quant(x))))))


torch.manual_seed(0)
set_march(March.NASH_M)
data = torch.rand(2, 3, 12, 12)
net = Net()

by_attribute = {}
for qconfig in (
    default_calib_8bit_fake_quant_qconfig,
    default_calib_8bit_weight_16bit_act_fake_quant_qconfig,
    default_calib_8bit_weight_32bit_out_fake_quant_qconfig,
    default_qat_8bit_fake_quant_qconfig,
    default_qat_8bit_fixed_act_fake_quant_qconfig,
    default_qat_8bit_lsq_quant_qconfig,
    default_qat_8bit_weight_16bit_act_fake_quant_qconfig,
    default_qat_8bit_weight_16bit_fixed_act_fake_quant_qconfig,
    default_qat_8bit_weight_32bit_out_fake_quant_qconfig,
    get_default_qconfig(
        activation_fake_quant="fake_quant",
        weight_fake_quant="fake_quant",
        activation_observer="min_max",
        weight_observer="min_max",
        activation_qkwargs={
            "dtype": qint16,
            "is_sync_quantize": False,
            "averaging_constant": 0.01,
        },
        weight_qkwargs={"dtype": qint8, "qscheme": torch.per_channel_symmetric, "ch_axis": 0},
    ),
):
    model = copy.deepcopy(net)
    model.qconfig = qconfig
    by_attribute[len(by_attribute)] = prepare_qat_fx(model, example_inputs=data)


def prepared(*setters):
    return prepare_qat_fx(copy.deepcopy(net), example_inputs=data, qconfig_setter=setters)


calib = prepared(default_calibration_qconfig_setter)
set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
calib(data)
set_fake_quantize(calib, FakeQuantState.VALIDATION)
qa = QuantAnalysis(net.eval(), calib, "fake_quant", out_dir="./sensitivity")
qa.set_bad_case(data)
qa.run()
qa.sensitivity(use_sensitivity_v2=True)
table = torch.load("sensitivity/output__case_0_sensitive_ops.pt")

by_name = ModuleNameQconfigSetter(
    {
        "op_1": default_qat_8bit_fake_quant_qconfig,
        "op_2": get_default_qconfig(
            activation_observer="fixed_scale",
            activation_qkwargs={"dtype": qint16, "scale": 4.0 / 32768},
        ),
    }
)
by_template = {
    "calibration": prepared(calibration_8bit_weight_16bit_act_qconfig_setter),
    "qat": prepared(default_qat_qconfig_setter),
    "fixed": prepared(default_qat_fixed_act_qconfig_setter),
    "qat 16": prepared(qat_8bit_weight_16bit_act_qconfig_setter),
    "fixed 16": prepared(qat_8bit_weight_16bit_fixed_act_qconfig_setter),
    "sensitive calibration": prepared(
        sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter(table, topk=1),
        default_calibration_qconfig_setter,
    ),
    "sensitive qat": prepared(
        sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter(table, ratio=0.2),
        default_qat_qconfig_setter,
    ),
    "by name": prepared(
        by_name,
        sensitive_op_qat_8bit_weight_16bit_fixed_act_qconfig_setter(table, ratio=0.2),
        default_calibration_qconfig_setter,
    ),
}
