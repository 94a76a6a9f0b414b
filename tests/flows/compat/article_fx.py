"""The article's fx flow: int16 and high-precision layers by name, calibration handed to QAT."""

import copy

import torch
from horizon_plugin_pytorch.march import March, set_march
from horizon_plugin_pytorch.quantization import (
    FakeQuantState,
    QuantStub,
    convert_fx,
    prepare_qat_fx,
    set_fake_quantize,
)
from horizon_plugin_pytorch.quantization.qconfig import (
    default_calib_8bit_fake_quant_qconfig,
    default_calib_16bit_fake_quant_qconfig,
    default_calib_out_8bit_fake_quant_qconfig,
    default_qat_8bit_fake_quant_qconfig,
    default_qat_16bit_fake_quant_qconfig,
    default_qat_out_8bit_fake_quant_qconfig,
)
from torch import nn
from torch.quantization import DeQuantStub


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = QuantStub(scale=1 / 128), DeQuantStub()
        self.stem, self.relu = nn.Conv2d(3, 8, 3), nn.ReLU()
        self.wide, self.head = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        x = self.relu(self.stem(self.quant(x)))
        return self.dequant(self.head(self.wide(x)))


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
images = torch.rand(4, 3, 12, 12, device=device) * 2 - 1
model = Net()
torch.save(model.state_dict(), "float.pth")
model.load_state_dict(torch.load("float.pth"))
set_march(March.BAYES)

calib_model = prepare_qat_fx(
    copy.deepcopy(model),
    {
        "": default_calib_8bit_fake_quant_qconfig,
        "module_name": [
            ("wide", default_calib_16bit_fake_quant_qconfig()),
            ("head", default_calib_out_8bit_fake_quant_qconfig),
        ],
    },
).to(device)
calib_model.eval()
set_fake_quantize(calib_model, FakeQuantState.CALIBRATION)
calib_model(images)
set_fake_quantize(calib_model, FakeQuantState.VALIDATION)
torch.save(calib_model.state_dict(), "calib.pth")
calib_model.load_state_dict(torch.load("calib.pth"))
calibrated = calib_model(images)

model.wide.qconfig = default_qat_16bit_fake_quant_qconfig()
qat_model = prepare_qat_fx(
    model,
    {
        "": default_qat_8bit_fake_quant_qconfig,
        "module_name": {"head": default_qat_out_8bit_fake_quant_qconfig},
    },
).to(device)
qat_model.load_state_dict(torch.load("calib.pth"))
qat_model.train()
optimizer = torch.optim.SGD(qat_model.parameters(), lr=1e-3)
qat_model(images).square().mean().backward()
optimizer.step()
quantized_model = convert_fx(qat_model.eval())
quantized = quantized_model(images)
