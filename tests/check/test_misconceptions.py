"""Each documented misconception, planted: one warning names it, and none on a clean model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from qtune.check.qat_model import check_qat_model
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    QuantStub,
    auto_calibrate,
    get_default_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.qconfig import (
    default_qat_8bit_fake_quant_qconfig as q8,
)
from qtune.quantization.qconfig import (
    default_qat_out_8bit_fake_quant_qconfig as out,
)

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5)).clamp(-4, 3.9) / 4


class Net(nn.Module):
    """Pre-processing, a quantized part, post-processing and a loss."""

    def __init__(self, scale: float | None = 1 / 128) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(scale=scale), DeQuantStub()
        self.pre, self.post = nn.ReflectionPad2d(1), nn.Sequential(nn.Sigmoid())
        self.conv, self.classifier = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)
        self.loss = nn.MSELoss()

    def forward(self, x: Tensor) -> Tensor:
        x = self.classifier(self.conv(self.quant(self.pre(x))))
        return self.post(self.dequant(x))


class Image(nn.Module):
    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.quant, self.dequant, self.conv = QuantStub(scale), DeQuantStub(), nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.conv(self.quant(x)))


class SquareLoss(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((x - y) * (x - y)).mean((1, 2, 3))


class Inner(nn.Module):
    """A loss in the quantized part."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.criterion = nn.Conv2d(3, 3, 1), SquareLoss()

    def forward(self, x: Tensor) -> Tensor:
        return self.criterion(self.conv(x), x)


def warnings_of(caplog: Any) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def one(caplog: Any, *words: str) -> None:
    (text,) = warnings_of(caplog)
    for word in words:
        assert word in text


@pytest.mark.parametrize("setter", [None, {"": q8, "module_name": {"classifier": out}}])
def test_a_clean_model_has_no_warning(setter: Any, caplog: Any) -> None:
    model = prepare(Net(), IMAGE, setter)
    auto_calibrate(model, [IMAGE])
    model.load_state_dict(model.state_dict())
    assert warnings_of(caplog) == []


def test_a_clean_model_by_module_qconfig_has_no_warning(caplog: Any) -> None:
    net = Net()
    net.qconfig, net.classifier.qconfig, net.loss.qconfig = q8, out, None  # type: ignore[assignment]
    auto_calibrate(prepare(net, IMAGE), [IMAGE])
    assert warnings_of(caplog) == []


def test_a_qconfig_on_a_loss_that_forward_never_calls(caplog: Any) -> None:
    net = Net()
    net.loss.qconfig = q8  # type: ignore[assignment]
    prepare(net, IMAGE)
    one(caplog, "a loss is not to be quantized", ": loss.")


def test_a_loss_inside_the_quantized_part(caplog: Any) -> None:
    prepare(Inner(), IMAGE)
    (text,) = [t for t in warnings_of(caplog) if "loss" in t]
    assert "a loss is not to be quantized, and these have a qconfig: criterion" in text


def test_a_qconfig_on_pre_and_post_processing(caplog: Any) -> None:
    net = Net()
    net.pre.qconfig = net.post.qconfig = q8  # type: ignore[assignment]
    prepare(net, IMAGE)
    one(caplog, "pre- and post-processing is not quantized", "have a qconfig: pre, post.")


@pytest.mark.parametrize("way", ["dict", "module", "exact"])
def test_an_output_that_is_not_high_precision(way: str, caplog: Any) -> None:
    net = Net()
    if way != "dict":
        holder = net if way == "module" else net.classifier
        holder.qconfig = q8  # type: ignore[assignment]
    prepare(net, IMAGE, {"": q8} if way == "dict" else None)
    one(caplog, "output not in high precision: classifier (qint8 by", "default_qat_out_8bit")


def test_a_given_image_scale_other_than_centred(caplog: Any) -> None:
    prepare(Image(1 / 255), IMAGE)
    one(caplog, "image input not centred: quant (scale 0.00392157)", "QuantStub(scale=1/128)")


def test_image_data_that_are_never_negative(caplog: Any) -> None:
    model = prepare(Image(), IMAGE)
    auto_calibrate(model, [IMAGE.abs()])
    one(caplog, "auto_calibrate: image input not centred: quant (data from")
    (message,) = [m for m in check_qat_model(model, IMAGE).messages if m.name == "quant"]
    assert message.text.startswith("image input not centred: data from 0.00")


def test_centred_images_and_inputs_that_are_no_images_have_no_warning(caplog: Any) -> None:
    auto_calibrate(prepare(Image(), IMAGE), [IMAGE])
    auto_calibrate(prepare(Image(1 / 128), IMAGE), [IMAGE])
    auto_calibrate(prepare(nn.Linear(8, 2), IMAGE), [IMAGE.abs()])  # [..., 8] into a linear layer
    found = [text for text in warnings_of(caplog) if "Linear" not in text]
    assert [text for text in found if "_input_0_quant" not in text] == []


def test_large_weights(caplog: Any) -> None:
    net = Net()
    with torch.no_grad():
        net.conv.weight[0, 0, 0, 0] = -100.0
    prepare(net, IMAGE)
    one(caplog, "large weights, a sign of an overfitted float model: conv (up to 100)")


class Longer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.classifier(self.conv(self.quant(self.pre(x))))
        return self.post(self.dequant(self.extra(x)))


def test_an_operator_added_after_the_calibration(caplog: Any) -> None:
    state = auto_calibrate(prepare(Net(), IMAGE), [IMAGE]).state_dict()
    model = prepare(Longer(), IMAGE)
    with pytest.raises(
        RuntimeError, match="operators added after the calibration.*: classifier, .*extra"
    ):
        model.load_state_dict(state)
    assert warnings_of(caplog) == []
    model.load_state_dict(state, strict=False)
    one(caplog, "no scale in this state for operators added after the calibration", "extra")


def test_float_weights_alone_are_no_calibrated_state(caplog: Any) -> None:
    prepare(Net(), IMAGE).load_state_dict(Net().state_dict(), strict=False)
    assert warnings_of(caplog) == []


@pytest.fixture
def _second_of_two_processes() -> Iterator[None]:
    """torch's own stand-in for a group of processes: collectives return at once."""
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_second_of_two_processes")
@pytest.mark.parametrize("sync", [False, True])
def test_calibration_on_several_processes_without_sync(sync: bool, caplog: Any) -> None:
    qconfig = get_default_qconfig(activation_qkwargs={"is_sync_quantize": sync})
    model = prepare(Net(), IMAGE, {"": qconfig, "module_name": {"classifier": out}})
    for state in FakeQuantState:
        set_fake_quantize(model.eval(), state)
    if sync:
        assert warnings_of(caplog) == []
    else:
        # the scale of the image is given, the output has none, weights are the same everywhere
        one(caplog, "multi-process calibration without sync: 1 observer(s)")
