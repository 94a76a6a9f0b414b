"""The guide's page about TorchScript files: save, load, and move what was traced."""

import torch
from horizon_plugin_pytorch import jit, set_march
from horizon_plugin_pytorch.jit import to_device
from horizon_plugin_pytorch.quantization import (
    FakeQuantState,
    convert_fx,
    prepare_qat_fx,
    set_fake_quantize,
)
from horizon_plugin_pytorch.quantization.qconfig import default_qat_8bit_fake_quant_qconfig
from torch import nn
from torch.quantization import DeQuantStub, QuantStub


class Fresh(nn.Module):
    def forward(self, x: torch.Tensor):
        return torch.ones(x.shape, device=x.device) + torch.zeros_like(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.conv, self.dequant = QuantStub(), nn.Conv2d(3, 4, 3), DeQuantStub()

    def forward(self, x):
        return self.dequant(self.conv(self.quant(x)))


script_mod = torch.jit.trace(Fresh(), torch.rand(2, 3, 3, 3))
target = torch.device("cuda" if torch.cuda.is_available() else "cpu")
moved = to_device(script_mod, target)
summed = moved(torch.rand(2, 3, 3, 3, device=target))

torch.manual_seed(0)
set_march("bayes-e")
data = torch.rand(1, 3, 8, 8)
model = Net()
model.qconfig = default_qat_8bit_fake_quant_qconfig
qat_model = prepare_qat_fx(model)
qat_model(data)
set_fake_quantize(qat_model.eval(), FakeQuantState.VALIDATION)
quantized = convert_fx(qat_model)
expected = quantized(data)
jit.save(torch.jit.trace(quantized, data), "quantized.pt")
loaded = jit.load("quantized.pt")
found = loaded(data)
