"""Learned scales in prepared models: every port and state, saved, loaded, exported, converted."""

import copy
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantize,
    FakeQuantState,
    PACTFakeQuantize,
    QConfig,
    QconfigSetter,
    convert,
    freeze_qat_module,
    get_default_qconfig,
    load_observer_params,
    prepare,
    set_fake_quantize,
)
from qtune.quantizers.learned import LearnedFakeQuantize
from qtune.quantizers.lsq import _LearnableFakeQuantize
from qtune.quantizers.observer import MinMaxObserver, MovingAveragePerChannelMinMaxObserver
from tests.cases.steps import to_integer

QAT, CALIBRATION, VALIDATION, FLOAT = FakeQuantState
KINDS = pytest.mark.parametrize(
    "kind", [_LearnableFakeQuantize, PACTFakeQuantize], ids=["lsq", "pact"]
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.up = nn.ConvTranspose2d(6, 4, 2, groups=2)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        y = F.relu(self.bn(self.conv(x)))
        return self.fc(torch.sigmoid(self.up(y) + 0.5).mean((2, 3)))


def data():
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(5))


def qconfig_of(kind):
    own = {"use_grad_scaling": True} if kind is _LearnableFakeQuantize else {}
    activation = kind.with_args(observer=MinMaxObserver, **own)
    weight = kind.with_args(
        observer=MovingAveragePerChannelMinMaxObserver, ch_axis=0, averaging_constant=1.0, **own
    )
    return QConfig(input=activation, weight=weight, output=activation)


def prepared(kind, net=None):
    torch.manual_seed(0)
    net = Net() if net is None else net
    return prepare(net.eval(), (data(),), QconfigSetter(qconfig_of(kind), templates=[]))


def calibrated(kind):
    model = prepared(kind)
    set_fake_quantize(model, CALIBRATION)
    with torch.no_grad():
        model(data())
    set_fake_quantize(model, VALIDATION)
    return model


def trained(kind, rate=1e-3):
    model = calibrated(kind)
    set_fake_quantize(model, QAT)
    model.train()
    scales = [p for n, p in model.named_parameters() if n.endswith((".scale", ".alpha"))]
    others = [p for n, p in model.named_parameters() if not n.endswith((".scale", ".alpha"))]
    optimizer = torch.optim.SGD(
        [{"params": others, "lr": 1e-3}, {"params": scales, "lr": rate, "weight_decay": 0.0}]
    )
    for _ in range(4):
        optimizer.zero_grad()
        model(data()).square().sum().backward()
        optimizer.step()
    set_fake_quantize(model, VALIDATION)
    return model.eval()


def scales(model):
    return {(name, kind): fq.scale.detach().clone() for name, kind, fq in iter_stubs(model)}


@KINDS
def test_every_port_learns_and_every_scale_has_a_gradient(kind):
    model = calibrated(kind)
    stubs = list(iter_stubs(model))
    assert {port for _, port, _ in stubs} >= {"weight", "output"}
    assert all(type(fq) is kind for _, _, fq in stubs)
    set_fake_quantize(model, QAT)
    model.train()
    model(data() * 3).square().sum().backward()
    without = [(n, port) for n, port, fq in stubs if fq._parameters[fq.learns].grad is None]
    assert not without


@KINDS
def test_training_moves_the_scales_and_lowers_the_loss(kind):
    before, after = calibrated(kind), trained(kind)
    moved = [not torch.equal(s, scales(before)[k]) for k, s in scales(after).items()]
    assert any(moved)
    assert after(data()).square().sum() < before(data()).square().sum()


@KINDS
def test_float_state_equals_the_float_model(kind):
    torch.manual_seed(0)
    net = Net().eval()
    model = prepared(kind, copy.deepcopy(net))
    set_fake_quantize(model, FLOAT)
    # FuseBN folds the norm into the weights: 1e-5 relative (numerics.md section 5)
    torch.testing.assert_close(model(data()), net(data()), rtol=1e-5, atol=1e-6)


@KINDS
def test_the_calibrated_state_of_the_plain_kind_loads_and_gives_the_same_bits(kind):
    plain = calibrated(FakeQuantize)
    model = prepared(kind).eval()
    model.load_state_dict(plain.state_dict())
    set_fake_quantize(model, VALIDATION)
    assert torch.equal(model(data()), plain(data()))
    other = load_observer_params(plain, prepared(kind).eval())
    assert all(torch.equal(s, scales(plain)[k]) for k, s in scales(other).items())


@KINDS
def test_the_trained_state_loads_back_into_the_plain_model(kind):
    model = trained(kind)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    plain = prepared(FakeQuantize).eval()
    plain.load_state_dict(torch.load(file, weights_only=True))
    set_fake_quantize(plain, VALIDATION)
    assert torch.equal(plain(data()), model(data()))
    again = prepared(kind).eval()
    again.load_state_dict(plain.state_dict())
    set_fake_quantize(again, VALIDATION)
    assert torch.equal(again(data()), model(data()))


@KINDS
def test_the_learned_scales_are_exported_and_converted(kind):
    """``to_integer`` holds the exported file, the integers and ONNX Runtime against the model."""
    model, start = trained(kind), calibrated(kind)
    [integers], [before] = to_integer(model, (data(),)), to_integer(start, (data(),))
    step = max(float(fq.scale.detach().max()) for _, port, fq in iter_stubs(model))
    assert (integers - model(data())).abs().max() <= 2 * step
    assert not torch.equal(integers, before)


@KINDS
def test_a_step_that_leaves_a_negative_scale_is_never_exported(kind):
    model = calibrated(kind)
    with torch.no_grad():
        for _, _, fq in iter_stubs(model):
            fq._parameters[fq.learns].neg_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [integers] = to_integer(model, (data(),))
    assert torch.equal(integers, to_integer(calibrated(kind), (data(),))[0])


@pytest.mark.parametrize("name", ["lsq", "pact"])
def test_qconfigs_take_the_kind_by_its_name(name):
    qconfig = get_default_qconfig(activation_fake_quant=name, weight_fake_quant=name)
    model = prepare(Net().eval(), (data(),), QconfigSetter(qconfig, templates=[]))
    found = [fq for _, _, fq in iter_stubs(model)]
    assert found
    assert all(isinstance(fq, LearnedFakeQuantize) for fq in found)


@KINDS
def test_quantized_modules_and_frozen_parts_keep_the_learned_scales(kind):
    model = trained(kind)
    quantized = convert(copy.deepcopy(model))
    [integers] = to_integer(model, (data(),))
    assert torch.equal(quantized(data()), integers)
    set_fake_quantize(freeze_qat_module(model), QAT)
    before = {key: scale.clone() for key, scale in scales(model).items()}
    model.train()
    assert not model(data() * 9).requires_grad
    assert all(torch.equal(scale, before[key]) for key, scale in scales(model).items())
