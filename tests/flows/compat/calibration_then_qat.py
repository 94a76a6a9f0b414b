"""The guide's calibration flow, then its QAT flow from that checkpoint, down to integers."""

import copy

import horizon_plugin_pytorch as horizon
import torch
from horizon_plugin_pytorch.quantization import (
    FakeQuantState,
    convert_fx,
    get_default_qconfig,
    prepare_qat_fx,
    set_fake_quantize,
)
from torch import nn
from torch.quantization import DeQuantStub, QuantStub
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
horizon.march.set_march(horizon.march.March.Bayes)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.pool(self.features(self.quant(x)))
        return self.dequant(self.classifier(x)).flatten(1)


labels = torch.arange(64) % 4
images = torch.rand(64, 3, 8, 8) * 0.2 - 0.5 + labels[:, None, None, None] * 0.25
loader = DataLoader(TensorDataset(images, labels), batch_size=16)


def train_one_epoch(model, optimizer):
    for batch, target in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.to(device)), target.to(device)).backward()
        optimizer.step()


def evaluate(model):
    with torch.no_grad():
        hits = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)
    return hits / len(labels)


float_model = Net().to(device)
optimizer = torch.optim.Adam(float_model.parameters(), lr=0.02)
for _ in range(20):
    train_one_epoch(float_model.train(), optimizer)
float_accuracy = evaluate(float_model.eval())

to_calibrate = copy.deepcopy(float_model)
to_calibrate.qconfig = horizon.quantization.get_default_qconfig(
    activation_fake_quant="fake_quant",
    weight_fake_quant="fake_quant",
    activation_observer="mse",
    weight_observer="min_max",
    activation_qkwargs={"is_sync_quantize": False, "averaging_constant": 0.1},
)
calib_model = prepare_qat_fx(to_calibrate).to(device)
calib_model.eval()
horizon.quantization.set_fake_quantize(calib_model, horizon.quantization.FakeQuantState.CALIBRATION)
with torch.no_grad():
    for batch, _ in loader:
        calib_model(batch.to(device))
calib_model.eval()
horizon.quantization.set_fake_quantize(calib_model, horizon.quantization.FakeQuantState.VALIDATION)
calib_accuracy = evaluate(calib_model)
torch.save(calib_model.state_dict(), "calib-checkpoint.ckpt")

weights = {"qscheme": torch.per_channel_symmetric, "ch_axis": 0}
default_qat_8bit_fake_quant_qconfig = get_default_qconfig(
    activation_fake_quant="fake_quant",
    weight_fake_quant="fake_quant",
    activation_observer="min_max",
    weight_observer="min_max",
    activation_qkwargs=None,
    weight_qkwargs=weights,
)
default_qat_out_8bit_fake_quant_qconfig = get_default_qconfig(
    activation_fake_quant=None,
    weight_fake_quant="fake_quant",
    activation_observer=None,
    weight_observer="min_max",
    activation_qkwargs=None,
    weight_qkwargs=weights,
)
qat_model = prepare_qat_fx(
    float_model,
    {
        "": default_qat_8bit_fake_quant_qconfig,
        "module_name": {"classifier": default_qat_out_8bit_fake_quant_qconfig},
    },
).to(device)
qat_model.load_state_dict(torch.load("calib-checkpoint.ckpt"))
optimizer = torch.optim.SGD(qat_model.parameters(), lr=0.0001, weight_decay=2e-4)
for _ in range(2):
    qat_model.train()
    set_fake_quantize(qat_model, FakeQuantState.QAT)
    train_one_epoch(qat_model, optimizer)
    qat_model.eval()
    set_fake_quantize(qat_model, FakeQuantState.VALIDATION)
    qat_accuracy = evaluate(qat_model)

quantized_model = convert_fx(qat_model.eval()).to(device)
quantized_accuracy = evaluate(quantized_model)
print(
    f"float {float_accuracy:.3f} calibrated {calib_accuracy:.3f} quantized {quantized_accuracy:.3f}"
)
