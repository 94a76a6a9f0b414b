"""``convert`` of models prepared in eager mode, and the deploy flow of the QAT article."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu.compiler import Hbm
from qtune.errors import ConvertError, NotCalibratedError, RunError
from qtune.nn import quantized
from qtune.nn.quantized import PreservedOp, QTensor
from qtune.quantization import (
    FakeQuantState,
    FloatFunctional,
    QuantStub,
    check_model,
    compile_model,
    convert,
    hbdk4,
    prepare_qat,
    set_fake_quantize,
    set_preserve_qat_mode,
)
from qtune.quantizers.fake_quantize import FakeQuantize

from .article import IMAGES, DeployModel, qat_detector

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
"""torch announces the end of torch.jit, which the documents' flow uses."""


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return {}


@pytest.fixture
def detector(made: dict[str, Any]) -> Any:
    """The prepared detector, made once; tests must leave it as it is."""
    if "detector" not in made:
        made["detector"] = qat_detector()
    return made["detector"]


@pytest.fixture
def model(detector: Any, made: dict[str, Any]) -> Any:
    """The converted detector, made once; tests must leave it as it is."""
    if "model" not in made:
        made["model"] = convert(detector)
    return made["model"]


def all_equal(got: Any, expected: Any) -> bool:
    return len(got) == len(expected) and all(map(torch.equal, got, expected))


def test_a_fused_eager_model_equals_the_emulated_bpu(detector: Any, model: Any) -> None:
    integer = hbdk4.convert(hbdk4.export(detector, (IMAGES,)))[0]
    assert all_equal(model(IMAGES), integer(IMAGES))
    block = model.backbone.block
    assert isinstance(block.relu2, quantized.QuantizedOp)
    assert block.conv2.group.endswith("relu2")
    assert isinstance(model.head.loss, nn.MSELoss)


def test_layers_that_were_not_fused_have_scales_of_their_own() -> None:
    prepared = qat_detector(fused=False)
    model = convert(prepared)
    x = model.backbone.stem(model.backbone.quant(IMAGES))
    assert isinstance(x, QTensor)
    assert isinstance(model.backbone.block.conv1(x), QTensor)
    integer = hbdk4.convert(hbdk4.export(prepared, (IMAGES,)))[0]
    assert all_equal(model(IMAGES), integer(IMAGES))


def test_the_article_from_deploy_model_to_program(model: Any, tmp_path: Path) -> None:
    expected = model(IMAGES)
    deploy = DeployModel(model.backbone, model.head).to(torch.device("cpu"))
    traced = torch.jit.trace(deploy.eval(), IMAGES)
    traced.to(torch.device("cpu"))
    assert all_equal(traced(IMAGES), expected)
    assert all_equal(traced(-IMAGES), model(-IMAGES))
    assert check_model(traced, IMAGES, advice=1) == 0
    file = tmp_path / "model.hbm"
    assert compile_model(traced, [IMAGES], opt=0, hbm=file, progressbar=False) == 0
    assert all_equal(Hbm(file)[0](IMAGES), expected)


def test_copies_give_the_same_bits(model: Any) -> None:
    other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    other.load_state_dict(model.state_dict())
    assert all_equal(other(IMAGES), model(IMAGES))


def test_a_fused_layer_used_alone_says_what_to_do(model: Any) -> None:
    block = model.backbone.block
    x = model.backbone.stem(model.backbone.quant(IMAGES))
    text = r"conv1 is fused with the layers up to backbone.block.relu1 and has no result of its own"
    with pytest.raises(RunError, match=text):
        torch.sigmoid(block.conv1(x))
    with pytest.raises(
        AttributeError, match=r"forward uses it \(shape\).*leave it out of fuse_mod"
    ):
        _ = block.conv1(x).shape
    with pytest.raises(RunError, match=r"members of fused groups and have none of their own"):
        block.relu2(block.conv1(x))


def test_a_fused_group_is_preserved_as_a_whole() -> None:
    prepared = qat_detector()
    set_preserve_qat_mode(prepared, ["backbone.block.conv1"])
    model = convert(prepared)
    kept = {name for name, m in model.named_modules() if isinstance(m, PreservedOp)}
    assert kept == {f"backbone.block.{name}1" for name in ("conv", "bn", "relu")}
    inside = [m for m in model.modules() if isinstance(m, FakeQuantize)]
    assert inside  # the QAT form
    got, expected = model.backbone(IMAGES)[0], prepared.backbone(IMAGES)[0]
    # float32 sums in the kept group, integers behind it: at most one step of the block's result
    assert float((got.dequantize() - expected.detach()).abs().max()) < 1.001 * got.q_scale()
    set_preserve_qat_mode(prepared, ["backbone.block.add"])
    with pytest.raises(ConvertError, match=r"FloatFunctional, which can't stay in QAT form"):
        convert(prepared)


class Methods(nn.Module):
    """Every method of a FloatFunctional."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.conv = QuantStub(), nn.Conv2d(3, 3, 1)
        names = ("add", "sub", "mul", "cat", "add_scalar", "mul_scalar", "add_relu", "matmul")
        for name in names:
            self.add_module(name, FloatFunctional())

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.quant(x)
        y = self.conv(x)
        return [
            self.add.add(x, y),
            self.sub.sub(x, y),
            self.mul.mul(x, y),
            self.cat.cat([x, y], 1),
            self.add_scalar.add_scalar(x, 0.5),
            self.mul_scalar.mul_scalar(x, 0.7),
            self.add_relu.add_relu(x, y),
            self.matmul.matmul(x, y),
        ]


def test_float_functionals_keep_their_methods() -> None:
    x = torch.randn(2, 3, 4, 4)
    prepared = prepare_qat(Methods().eval()).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(x)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    model = convert(prepared)
    integer = hbdk4.convert(hbdk4.export(prepared, (x,)))[0](x)
    assert all_equal([y.dequantize() for y in model(x)], integer)
    with pytest.raises(RunError, match=r"^add: it was calibrated as add and is called as mul"):
        model.add.mul(model.quant(x), model.quant(x))


def test_a_float_functional_that_never_ran_is_refused() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.unused = QuantStub(scale=0.1), FloatFunctional()

        def forward(self, x: Tensor) -> Tensor:
            return self.quant(x)

    prepared = prepare_qat(Unused().eval()).eval()
    prepared.unused.activation_post_process.set_qparams(1.0)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    with pytest.raises(ConvertError, match=r"unused: which operator .* run the model once before"):
        convert(prepared)


class Mmdet(nn.Module):
    """Two feature maps through a neck that does nothing, and layers that forward never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.neck = QuantStub(scale=1 / 128), nn.Identity()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.unused, self.add = nn.Conv2d(4, 4, 1), FloatFunctional()
        self.attention = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Any:
        x = self.first(self.quant(x))
        return self.neck((x, self.second(x)))


def test_layers_that_never_ran_raise_only_when_they_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prepared = prepare_qat(Mmdet().eval()).eval()
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    with pytest.raises(NotCalibratedError, match="first weight"):
        convert(prepared)
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    x = torch.randn(2, 3, 4, 4)
    prepared(x)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    caplog.clear()
    model = convert(prepared)
    assert "never ran, so without a scale; called, they raise: unused weight, unused" in caplog.text
    integer = hbdk4.convert(hbdk4.export(prepared, (x,)))[0](x)
    found = model(x)
    assert all_equal([y.dequantize() for y in found], integer)
    for call in (
        lambda: model.unused(found[0]),
        lambda: model.add.add(found[0], found[1]),
        lambda: model.add.add_relu(found[0], found[1]),
        lambda: model.attention(found[0]),
    ):
        with pytest.raises(NotCalibratedError, match="never ran in calibration or training"):
            call()
    assert all_equal([y.dequantize() for y in copy.deepcopy(model)(x)], integer)
