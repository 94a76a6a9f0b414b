"""The practice article: consistency level, and one analysis for each step down to integers."""

from pathlib import Path

import torch
from hbdk4.compiler import Hbm, compile, convert, load, save
from horizon_plugin_profiler import HbirModelProfiler, ModelProfiler, QuantAnalysis
from horizon_plugin_pytorch import March, set_march
from horizon_plugin_pytorch.qat_mode import ConsistencyStrategy
from horizon_plugin_pytorch.quantization import (
    FakeQuantState,
    QuantStub,
    prepare,
    set_fake_quantize,
)
from horizon_plugin_pytorch.quantization.hbdk4 import export, pre_export
from horizon_plugin_pytorch.quantization.qconfig_template import (
    calibration_8bit_weight_16bit_act_qconfig_setter,
)
from torch import nn
from torch.quantization import DeQuantStub

set_march(March.NASH_E)
ConsistencyStrategy.set_consistency_level(2)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.quant2, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
        self.back, self.relu = nn.Conv2d(3, 8, 1), nn.ReLU()
        self.heads = nn.ModuleDict({"det": nn.Conv2d(8, 4, 1), "seg": nn.Conv2d(8, 2, 1)})

    def forward(self, inputs: dict[str, torch.Tensor], task: list[str]):
        x = torch.sigmoid(self.relu(self.back(self.quant(inputs["img"]))))
        x = x * self.quant2(inputs["weight"])
        return {name: self.dequant(self.heads[name](x)) for name in task}


class PostProcess:
    def __call__(self, outputs):
        return {name: torch.sigmoid(value).amax(1) for name, value in outputs.items()}


def tensors():
    return {"img": torch.rand(1, 3, 8, 8), "weight": torch.rand(1, 8, 8, 8)}


def analyse(baseline, analysis, kind, case, out_dir, **options):
    qa = QuantAnalysis(baseline, analysis, kind, out_dir=out_dir, **options)
    qa.set_bad_case(case)
    qa.run()
    qa.compare_per_layer()
    return qa


torch.manual_seed(0)
with_task = (tensors(), ["det", "seg"])
float_pt = MultiTask().eval()
qat_pt = prepare(
    float_pt, with_task, qconfig_setter=calibration_8bit_weight_16bit_act_qconfig_setter
)
set_fake_quantize(qat_pt.eval(), FakeQuantState.CALIBRATION)
for _ in range(3):
    qat_pt(tensors(), ["det", "seg"])
set_fake_quantize(qat_pt, FakeQuantState.VALIDATION)
pre_export_pt = pre_export(qat_pt)
qat_bc = export(qat_pt, with_task)
quantized_bc = convert(qat_bc, "nash-e")
save(quantized_bc, "quantized.bc")
quantized_bc = load("quantized.bc")
compile(quantized_bc, "model.hbm", "nash-e")
hbm = Hbm("model.hbm")

analyse(float_pt, qat_pt, "fake_quant", with_task, "./float_vs_calib").sensitivity()
analyse(qat_pt, pre_export_pt, "pre_export", with_task, "./qatpt_vs_qatexportpt").sensitivity()
qa = analyse(pre_export_pt, qat_bc, "export", with_task, "./pre_export_pt_vs_qatbc")
qa.set_bad_case(with_task)
qa.run(run_baseline_model=True, run_analysis_model=False)
qa.set_bad_case((with_task[0]["img"], with_task[0]["weight"]))
qa.run(run_baseline_model=False, run_analysis_model=True)
qa.compare_per_layer()

qa = QuantAnalysis(qat_bc, quantized_bc, "convert", out_dir="./qatbc_vs_quantizedbc")
qa.auto_find_bad_case([tensors() for _ in range(3)])
qa.run()
qa.compare_per_layer()
ranking = QuantAnalysis(pre_export_pt, quantized_bc, "convert", out_dir="./qatbc_vs_quantizedbc")
ranking.load_bad_case()
rows = ranking.sensitivity()

analyse(
    float_pt, qat_pt, "fake_quant", with_task, "./with_post_process", post_process=PostProcess()
)

with ModelProfiler(qat_pt, "./profiler_dir") as p:
    qat_pt(*with_task)
p.get_info_manager().table()
p.get_info_manager().tensorboard()
with HbirModelProfiler(qat_bc, "./hbir_dir") as p:
    qat_bc[0](with_task[0])
p.get_info_manager().table()

(first,) = Path("float_vs_calib/op_infos/baseline").glob("*back.opinfo")
opinfo = torch.load(first, weights_only=False)
