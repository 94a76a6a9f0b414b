"""The documented flows on handwritten digits: calibration, QAT, the three QAT modes."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from qtune.modes import qat_mode
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    absorb_bn,
    auto_calibrate,
    freeze_qat_module,
    get_qconfig,
    load_calib_state_dict,
    operators_in,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import convert, export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .digits import POINT, accuracy, batches, calibrated, example, hard_for_int8, train_qat

MODES = ["fuse_bn", "with_bn", "with_bn_reverse_fold"]


def integer_accuracy(model: Any) -> float:
    module = convert(export(model, batches()[0]))
    return accuracy(lambda images: module[0](images))


def test_calibration_only_is_within_a_point_of_float_down_to_integers(
    float_net: nn.Module,
) -> None:
    reference = accuracy(float_net)
    assert reference > 0.97
    p = prepare(float_net, batches()[0])
    set_fake_quantize(p.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        for images in batches():
            p(images)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    assert abs(accuracy(p) - reference) <= POINT
    assert abs(integer_accuracy(p) - reference) <= POINT


def test_qat_continues_from_a_saved_calibration(float_net: nn.Module) -> None:
    calib = calibrated(float_net)
    file = io.BytesIO()
    torch.save(calib.state_dict(), file)
    file.seek(0)
    qat = prepare(float_net, batches()[0])
    load_calib_state_dict(qat, torch.load(file, weights_only=True))
    set_fake_quantize(qat.eval(), FakeQuantState.VALIDATION)
    assert accuracy(qat) == accuracy(calib)
    train_qat(qat, epochs=2, lr=1e-4)
    assert accuracy(qat) >= accuracy(float_net) - POINT
    assert abs(integer_accuracy(qat) - accuracy(qat)) <= POINT / 2
    calib.load_state_dict(qat.state_dict())  # the other way
    assert accuracy(calib) == accuracy(qat)


def activation_scales(model: nn.Module) -> dict[str, Any]:
    return {name: q.scale.clone() for name, kind, q in iter_stubs(model) if kind != "weight"}


def test_fixed_activation_scales_stay_while_weights_train(float_net: nn.Module) -> None:
    calib = calibrated(float_net)
    template = ModuleNameTemplate({"": "qint8"})
    fixed = QconfigSetter(get_qconfig(fix_scale=True), [template])
    qat = prepare(float_net, batches()[0], fixed)
    qat.load_state_dict(calib.state_dict())
    before = activation_scales(qat)
    common = before.keys() & activation_scales(calib).keys()
    assert all(torch.equal(before[name], activation_scales(calib)[name]) for name in common)
    weight = qat.get_submodule("conv").weight.detach().clone()  # type: ignore[operator]
    train_qat(qat, epochs=2, lr=1e-4)
    after = activation_scales(qat)
    moved = [name for name in common if not torch.equal(after[name], before[name])]
    assert moved == []
    assert not torch.equal(weight, qat.get_submodule("conv").weight)  # type: ignore[arg-type]
    assert accuracy(qat) >= accuracy(float_net) - POINT


@pytest.mark.parametrize("mode", MODES)
def test_qat_recovers_half_of_what_calibration_loses(float_net: nn.Module, mode: str) -> None:
    reference = accuracy(float_net)
    hard = hard_for_int8(float_net)
    assert abs(accuracy(hard) - reference) <= POINT / 2  # the same function
    with qat_mode(mode):
        model = calibrated(hard)
    lost = reference - accuracy(model)
    assert lost > 0.3
    train_qat(model)
    assert accuracy(model) >= reference - lost / 2
    assert abs(integer_accuracy(model) - accuracy(model)) <= POINT


def test_norms_are_absorbed_part_by_part_while_training(float_net: nn.Module) -> None:
    with qat_mode("with_bn_reverse_fold"):
        model = calibrated(hard_for_int8(float_net))
    seen = []

    def absorb(epoch: int) -> None:
        before = accuracy(model)
        absorb_bn(model, {1: "stem", 2: "bn", 3: "body"}.get(epoch, ()))
        seen.append((before, accuracy(model)))

    train_qat(model, after_epoch=absorb)
    assert all(before == after for before, after in seen)
    assert all(op.op != "batch_norm" for _, op in model.operators())
    assert accuracy(model) > 0.6  # calibration alone: 0.2
    assert abs(integer_accuracy(model) - accuracy(model)) <= POINT


def test_with_bn_trains_from_scratch() -> None:
    """What the mode is for: a quantized training that no float training precedes."""
    torch.manual_seed(0)
    with qat_mode("with_bn"):
        model = prepare(example.DigitsNet(), batches()[0])
    train_qat(model, epochs=8, lr=8e-3)
    assert accuracy(model) > 0.8  # guessing: 0.1
    assert abs(integer_accuracy(model) - accuracy(model)) <= POINT


def test_the_head_alone_is_trained_on_a_frozen_backbone(float_net: nn.Module) -> None:
    damaged: Any = example.DigitsNet()
    damaged.load_state_dict(float_net.state_dict())
    nn.init.zeros_(damaged.head.weight)
    p = calibrated(damaged.eval())
    freeze_qat_module(operators_in(p, "stem", "conv", "body"))
    before = p.get_submodule("stem").state_dict()
    before = {key: value.clone() for key, value in before.items()}
    assert accuracy(p) < 0.2
    train_qat(p, epochs=3, lr=1e-2)
    after = p.get_submodule("stem").state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert accuracy(p) >= accuracy(float_net) - 5 * POINT


def test_a_loader_of_images_and_labels_calibrates(float_net: nn.Module) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    (images, labels), _ = example.split()
    loader = DataLoader(TensorDataset(images[:320], labels[:320]), batch_size=32)
    p = auto_calibrate(prepare(float_net, batches()[0]), loader)
    assert accuracy(p) == accuracy(calibrated(float_net))
