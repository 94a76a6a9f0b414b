"""First page of the tuning tool: check, find, compare, rank, tune.

The import lines are the toolchain's; ``python -m qtune.compat quick_start.py`` runs it.
"""
# ruff: noqa: F403, F405

import torch
from horizon_plugin_profiler import QuantAnalysis
from horizon_plugin_profiler.utils.entities import Metric
from horizon_plugin_pytorch import qint8, set_march
from horizon_plugin_pytorch.quantization import (
    FakeQuantState,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from horizon_plugin_pytorch.quantization import hbdk4 as hb4
from horizon_plugin_pytorch.quantization.qconfig_setter import *
from torch import nn
from torch.quantization import DeQuantStub, QuantStub


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant = QuantStub()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU()
        self.dequant = DeQuantStub()

    def forward(self, image):
        x = self.relu(self.conv(self.quant(image)))
        x = nn.functional.interpolate(x, scale_factor=1.3, mode="bilinear", align_corners=False)
        return self.dequant(x)


torch.manual_seed(0)
set_march("nash-e")
image = torch.rand((1, 3, 32, 32))
float_net = Upscaler()
float_net(image)

templates = [ModuleNameTemplate({"": qint8}), ConvDtypeTemplate(), MatmulDtypeTemplate()]
calib_net = prepare(float_net, image, qconfig_setter=QconfigSetter(get_qconfig(), templates))

set_fake_quantize(calib_net.eval(), FakeQuantState.CALIBRATION)
calib_net(image)
torch.save(calib_net.state_dict(), "calib.pt")
calib_net.load_state_dict(torch.load("calib.pt"))

float_net.eval()
set_fake_quantize(calib_net.eval(), FakeQuantState.VALIDATION)
qat_hbir = hb4.export(calib_net, (image,))

qa = QuantAnalysis(
    baseline_model=float_net,
    analysis_model=calib_net,
    analysis_model_type="fake_quant",
    device_ids=0,
    out_dir="./floatvsqat",
)
qa.set_bad_case(image)
qa.run()
qa.compare_per_layer()
table = qa.sensitivity(use_sensitivity_v2=True)
qa.tune_bad_case(
    outputs_config={"": {"metric": Metric.ATOL, "threshold": 0.2, "max_tuned_stubs": 10}}
)

exported = QuantAnalysis(
    baseline_model=calib_net,
    analysis_model=qat_hbir,
    analysis_model_type="export",
    device_ids=0,
    out_dir="./qatvshbir",
)
exported.auto_find_bad_case([torch.rand(1, 3, 32, 32) for _ in range(3)], num_steps=100)
exported.run()
exported.compare_per_layer()
