"""The article's flow in eager mode on handwritten digits: layers fused by the model's own methods,
losses inside of the model, calibration, QAT, conversion, a deploy model of converted sub-modules.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.nn.qat import QATOp
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    FloatFunctional,
    QuantStub,
    convert,
    fuse_known_modules,
    fuse_modules,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    hbdk4,
    prepare_qat,
    set_fake_quantize,
)

from .digits import POINT, accuracy, batches, example, fit


class ConvModule(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm, self.activate = nn.BatchNorm2d(outputs), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.activate(self.norm(self.conv(x)))
        return result

    def fuse_modules(self) -> None:
        names = ["conv", "norm", "activate"]
        fuse_modules(self, names, inplace=True, fuser_func=fuse_known_modules)


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub(scale=1 / 128)
        self.conv1, self.conv2 = ConvModule(1, 16), ConvModule(16, 16)
        self.add, self.pool, self.conv3 = FloatFunctional(), nn.MaxPool2d(2), ConvModule(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.quant(x))
        x = self.add.add(self.conv2(x), x)
        result: Tensor = self.conv3(self.pool(x))
        return result

    def fuse_modules(self) -> None:
        for module in (self.conv1, self.conv2, self.conv3):
            module.fuse_modules()


class Head(nn.Module):
    """Two predictions: the digit, and whether it is even; a loss for each."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.convs_pred = nn.ModuleList([nn.Conv2d(32, 10, 1), nn.Conv2d(32, 2, 1)])
        self.dequant = nn.ModuleList([DeQuantStub(), DeQuantStub()])
        self.loss_cls, self.loss_even = nn.CrossEntropyLoss(), nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.mean(x)
        pairs = zip(self.dequant, self.convs_pred, strict=True)
        return [dequant(conv(x)).flatten(1) for dequant, conv in pairs]

    def losses(self, found: list[Tensor], labels: Tensor) -> dict[str, Tensor]:
        return {
            "cls": self.loss_cls(found[0], labels),
            "even": self.loss_even(found[1], labels % 2),
        }


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.bbox_head = Backbone(), Head()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        found = self.bbox_head(self.backbone(x))
        if self.training and labels is not None:
            return self.bbox_head.losses(found, labels)
        return found[0]

    def set_qconfig(self) -> None:
        self.qconfig = get_default_qat_qconfig()
        for conv in self.bbox_head.convs_pred:
            conv.qconfig = get_default_qat_out_qconfig()
        self.bbox_head.loss_cls.qconfig = None
        self.bbox_head.loss_even.qconfig = None


def train(model: nn.Module, epochs: int, lr: float) -> None:
    """The float trainer, for the float model and the QAT model alike."""
    fit(model, epochs, lr, lambda x, labels: sum(model(x, labels).values()).backward())


def ready() -> Detector:
    model = Detector()
    model.backbone.fuse_modules()
    model.set_qconfig()
    return model


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = Detector()
    train(model, 6, 8e-3)
    torch.set_num_threads(threads)
    return model


def calibrated(detector: Detector) -> Any:
    model = ready()
    model.load_state_dict(detector.state_dict())
    prepared = prepare_qat(model)
    set_fake_quantize(prepared.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for images in batches():
            prepared(images)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def test_calibration_qat_and_conversion_keep_the_accuracy(detector: Detector) -> None:
    reference = accuracy(detector)
    assert reference > 0.95
    calib = calibrated(detector)
    head = calib.bbox_head
    assert all(conv.activation_post_process is None for conv in head.convs_pred)
    assert type(head.loss_cls) is nn.CrossEntropyLoss
    assert abs(accuracy(calib) - reference) <= POINT

    qat = prepare_qat(ready())
    qat.load_state_dict(calib.state_dict())
    set_fake_quantize(qat, FakeQuantState.QAT)
    train(qat, 1, 1e-4)
    set_fake_quantize(qat, FakeQuantState.VALIDATION)
    assert abs(accuracy(qat) - reference) <= POINT
    assert abs(accuracy(convert(qat)) - reference) <= POINT


class DeployModel(nn.Module):
    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> Any:
        return self.head(self.backbone(x))[0]


@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
def test_a_deploy_model_of_converted_parts_equals_the_exported_integers(detector: Detector) -> None:
    qat = calibrated(detector)
    images = batches()[0]
    exported = hbdk4.convert(hbdk4.export(qat, images))[0](images)
    converted = convert(qat)
    deploy = DeployModel(converted.backbone, converted.bbox_head).eval()
    with torch.no_grad():
        assert torch.equal(deploy(images), exported)
        assert torch.equal(torch.jit.trace(deploy, images)(images), exported)
    parts = DeployModel(qat.backbone, qat.bbox_head).eval()
    assert torch.equal(hbdk4.convert(hbdk4.export(parts, images))[0](images), exported)


def test_one_head_alone_is_calibrated_again(detector: Detector) -> None:
    model = calibrated(detector)
    before = copy.deepcopy(model.state_dict())
    set_fake_quantize(model.bbox_head, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        model(batches()[0] * 0.5)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved
    assert all(key.startswith("bbox_head.mean.") for key in moved)


def test_the_article_fuses_what_check_finds_otherwise() -> None:
    model = prepare_qat(ready())
    groups = {m.name: m.group for m in model.modules() if isinstance(m, QATOp) and m.group}
    assert groups["backbone.conv1.conv"] == "backbone.conv1.activate"
    assert len(groups) == 9


def test_functional_loss_is_torchs_own(detector: Detector) -> None:
    model = calibrated(detector)
    (images, labels), _ = example.split()
    found = model.bbox_head(model.backbone(images[:64]))
    expected = F.cross_entropy(found[0], labels[:64])
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    assert torch.equal(model(images[:64], labels[:64])["cls"], expected)
