"""The precision tuning example of the older guide: check, convert, compare, rank."""

from copy import deepcopy

import torch
from horizon_plugin_profiler import ModelProfiler, QuantAnalysis
from horizon_plugin_pytorch.march import March, set_march
from horizon_plugin_pytorch.quantization import FakeQuantState, set_fake_quantize
from horizon_plugin_pytorch.quantization import hbdk4 as hb4
from horizon_plugin_pytorch.quantization.qconfig import default_qat_8bit_fake_quant_qconfig
from horizon_plugin_pytorch.quantization.quantize_fx import convert_fx, prepare_qat_fx
from horizon_plugin_pytorch.utils.check_model import check_qat_model
from torch import nn
from torch.quantization import DeQuantStub, QuantStub


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 3, 1), nn.ReLU()
        self.quant, self.dequant = QuantStub(), DeQuantStub()

    def forward(self, x):
        x = self.relu(self.conv(self.quant(x)))
        x = torch.nn.functional.interpolate(
            x, scale_factor=1.3, mode="bilinear", align_corners=False
        )
        return self.dequant(x)


torch.manual_seed(0)
data = torch.rand((1, 3, 32, 32))
float_net = Net()
float_net(data)
set_march(March.BAYES_E)
float_net.qconfig = default_qat_8bit_fake_quant_qconfig
qat_net = prepare_qat_fx(deepcopy(float_net))
check_qat_model(qat_net, data, save_results=True)
qat_net(data)
quantized_net = convert_fx(deepcopy(qat_net))

qa = QuantAnalysis(
    baseline_model=float_net,
    analysis_model=qat_net,
    analysis_model_type="fake_quant",
    out_dir="./floatvsqat",
)
qa.set_bad_case(data)
qa.save_bad_case()
qa.load_bad_case()
qa.run()
qa.compare_per_layer()
ranking = qa.sensitivity()

qa = QuantAnalysis(
    baseline_model=qat_net,
    analysis_model=quantized_net,
    analysis_model_type="quantized",
    out_dir="./qatvsquantized",
)
qa.set_bad_case(data)
qa.run()
qa.compare_per_layer()
qa.clean()

with ModelProfiler(qat_net, "./profiler_dir") as p:
    qat_net(data)
p.get_info_manager.table()
p.get_info_manager.tensorboard()
set_fake_quantize(qat_net.eval(), FakeQuantState.VALIDATION)
hbir = hb4.export(qat_net, (data,))
