"""The article's eager flow: layers fused by hand, losses left float, calibration, QAT, compile."""

import copy

import torch
from horizon_plugin_pytorch import quantization
from horizon_plugin_pytorch.march import March, set_march
from horizon_plugin_pytorch.quantization import (
    FakeQuantState,
    QuantStub,
    check_model,
    compile_model,
    convert,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    perf_model,
    prepare_qat,
    set_fake_quantize,
)
from horizon_plugin_pytorch.utils.quant_profiler import (
    check_unfused_operations,
    get_module_called_count,
    model_profiler,
)
from torch import nn
from torch.quantization import DeQuantStub


class ConvModule(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm, self.activate = nn.BatchNorm2d(outputs), nn.ReLU()

    def forward(self, x):
        return self.activate(self.norm(self.conv(x)))

    def fuse_modules(self):
        torch.quantization.fuse_modules(
            self,
            ["conv", "norm", "activate"],
            inplace=True,
            fuser_func=quantization.fuse_known_modules,
        )


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm, self.add = nn.BatchNorm2d(channels), torch.quantization.FloatFunctional()

    def forward(self, x):
        return self.add.add(self.norm(self.conv(x)), x)

    def fuse_modules(self):
        torch.quantization.fuse_modules(
            self,
            ["conv", "norm", "add"],
            inplace=True,
            fuser_func=quantization.fuse_known_modules,
        )


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant = QuantStub(scale=1 / 128)
        self.conv1, self.layers = ConvModule(3, 8, stride=2), nn.Sequential(Residual(8))

    def forward(self, x):
        return self.layers(self.conv1(self.quant(x)))

    def fuse_modules(self):
        self.conv1.fuse_modules()
        for layer in self.layers:
            layer.fuse_modules()


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.bridges = nn.ModuleList([ConvModule(8, 8), ConvModule(8, 8)])
        self.convs_pred = nn.ModuleList([nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 1)])
        self.dequant = nn.ModuleList([DeQuantStub(), DeQuantStub()])
        self.loss_xy = nn.MSELoss()

    def fuse_modules(self):
        for bridge in self.bridges:
            bridge.fuse_modules()

    def forward(self, x):
        maps = []
        for bridge, conv, dequant in zip(self.bridges, self.convs_pred, self.dequant, strict=True):
            maps.append(dequant(conv(bridge(x))))
        return tuple(maps)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.bbox_head = Backbone(), Head()

    def forward(self, x):
        return self.bbox_head(self.backbone(x))


class DeployModel(nn.Module):
    def __init__(self, backbone, bbox_head):
        super().__init__()
        self.backbone, self.bbox_head = backbone, bbox_head

    def forward(self, x):
        return self.bbox_head(self.backbone(x))


def train_detector(model, lr=1e-3):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    for batch in batches:
        optimizer.zero_grad()
        sum(
            model.bbox_head.loss_xy(found, torch.zeros_like(found)) for found in model(batch)
        ).backward()
        optimizer.step()


torch.manual_seed(0)
batches = [torch.rand(2, 3, 16, 16) * 2 - 1 for _ in range(3)]
model = Detector()
train_detector(model.train())
set_march(March.BAYES)
unfused = check_unfused_operations(copy.deepcopy(model).eval(), batches[0])
called = get_module_called_count(model, batches[0])

model.backbone.fuse_modules()
model.bbox_head.fuse_modules()
model.qconfig = get_default_qat_qconfig()
for conv in model.bbox_head.convs_pred:
    conv.qconfig = get_default_qat_out_qconfig()
model.bbox_head.loss_xy.qconfig = None

calib_model = prepare_qat(copy.deepcopy(model))
calib_model.eval()
set_fake_quantize(calib_model, FakeQuantState.CALIBRATION)
with torch.no_grad():
    for batch in batches:
        calib_model(batch)
calib_model.eval()
set_fake_quantize(calib_model, FakeQuantState.VALIDATION)
torch.save(calib_model.state_dict(), "calib.pth")

qat_model = prepare_qat(model)
qat_model.to(torch.device("cuda:1" if torch.cuda.device_count() > 1 else "cpu"))
qat_model.load_state_dict(torch.load("calib.pth"))
train_detector(qat_model.train(), lr=1e-4)

quantized_model = convert(qat_model.eval())
deploy_model = DeployModel(quantized_model.backbone, quantized_model.bbox_head)
example_input = torch.rand(1, 3, 16, 16) * 2 - 1
traced_model = torch.jit.trace(deploy_model.eval(), example_input)
verdict = check_model(traced_model, example_input, advice=1)
status = compile_model(traced_model, [example_input], opt=0, hbm="model.hbm")
speed = perf_model(traced_model, [example_input], out_dir="perf")
set_fake_quantize(qat_model, FakeQuantState.VALIDATION)
model_profiler(qat_model, quantized_model, example_input, mode="QvsQ")
