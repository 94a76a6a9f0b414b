"""The guide's heterogeneous model: some operators on the CPU, calibrated, trained, exported."""

import copy

import torch
from horizon_plugin_pytorch.march import March, set_march
from horizon_plugin_pytorch.nn import qat
from horizon_plugin_pytorch.quantization import (
    FakeQuantState,
    convert_fx,
    load_observer_params,
    prepare_qat_fx,
    set_fake_quantize,
)
from horizon_plugin_pytorch.quantization.qconfig import (
    default_calib_8bit_fake_quant_qconfig,
    default_calib_out_8bit_fake_quant_qconfig,
    default_qat_8bit_fake_quant_qconfig,
    default_qat_out_8bit_fake_quant_qconfig,
)
from horizon_plugin_pytorch.utils.onnx_helper import export_to_onnx
from torch import nn
from torch.quantization import DeQuantStub, QuantStub


class Selu(nn.Module):
    def forward(self, x):
        return nn.functional.selu(x)


class ConvBlock(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.conv, self.prelu = nn.Conv2d(channels, channels, 1), nn.PReLU()

    def forward(self, x):
        return nn.functional.selu(self.prelu(self.conv(x)))


class HybridModel(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv0, self.prelu = nn.Conv2d(channels, channels, 1), nn.PReLU()
        self.conv1 = ConvBlock(channels)
        self.conv2 = nn.Conv2d(channels, channels, 1)
        self.conv3 = nn.Conv2d(channels, channels, 1)
        self.conv4 = nn.Conv2d(channels, channels, 1)
        self.selu, self.identity = Selu(), nn.Identity()

    def forward(self, x):
        x = self.identity(self.conv0(self.quant(x)))
        x = self.conv1(nn.functional.selu(self.prelu(x)))
        x = self.identity(self.conv3(self.conv2(x)))
        return self.dequant(self.selu(self.conv4(x)))


torch.manual_seed(0)
set_march(March.BAYES_E)
shape = [1, 3, 32, 32]
data = torch.rand(size=shape)
model = HybridModel()
qat_model = copy.deepcopy(model)
float_result = model(data)
on_cpu = {"module_name": ["conv1.conv", "conv3"], "module_type": [Selu]}

calib_model = prepare_qat_fx(
    model,
    {
        "": default_calib_8bit_fake_quant_qconfig,
        "module_name": [("conv4", default_calib_out_8bit_fake_quant_qconfig)],
    },
    hybrid=True,
    hybrid_dict=on_cpu,
)
calib_model.eval()
set_fake_quantize(calib_model, FakeQuantState.CALIBRATION)
for _ in range(5):
    calib_model(torch.rand(size=shape))

qat_model = prepare_qat_fx(
    qat_model,
    {
        "": default_qat_8bit_fake_quant_qconfig,
        "module_name": [("conv4", default_qat_out_8bit_fake_quant_qconfig)],
    },
    hybrid=True,
    hybrid_dict=on_cpu,
)
load_observer_params(calib_model, qat_model)
set_fake_quantize(calib_model, FakeQuantState.QAT)
convs = {name: part for name, part in qat_model.named_modules() if isinstance(part, qat.Conv2d)}
on_bpu = [name for name, part in convs.items() if part.weight_fake_quant is not None]

optimizer = torch.optim.SGD(qat_model.parameters(), lr=1e-4)
for _ in range(2):
    optimizer.zero_grad()
    (qat_model(data) - float_result.detach()).square().mean().backward()
    optimizer.step()

export_to_onnx(qat_model, data, "qat.onnx", operator_export_type=None)
quantized_model = convert_fx(qat_model)
quantized_result = quantized_model(data)
