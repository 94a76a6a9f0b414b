"""Reported faults about shared, reused and fused operators."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.dtype import qint8, qint16
from qtune.quantization import (
    FakeQuantState,
    FloatFunctional,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from tests.quantization.flow import calib, names, off, op, out_scale, prep, run, s8, scales


def random_bn(channels: int) -> nn.BatchNorm2d:
    bn = nn.BatchNorm2d(channels)
    bn.running_mean.uniform_(-1, 1)
    bn.running_var.uniform_(0.5, 2)
    nn.init.uniform_(bn.weight, 0.5, 1.5)
    nn.init.uniform_(bn.bias, -1, 1)
    return bn


class TwoAdds(nn.Module):
    def __init__(self, functional: type[nn.Module]) -> None:
        super().__init__()
        self.add = functional()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.add.add(x, x)
        return a, self.add.add(a * 40, a * 40)


def functional_classes() -> list[type[nn.Module]]:
    from torch.ao.nn.quantized import FloatFunctional as TorchFloatFunctional

    return [FloatFunctional, TorchFloatFunctional]


@pytest.mark.parametrize("functional", functional_classes())
def test_a_functional_object_used_twice_has_one_scale_for_the_union(
    functional: type[nn.Module],
) -> None:
    """A08"""
    p = prep(TwoAdds(functional), torch.zeros(201))
    x = torch.linspace(-0.5, 0.5, 201)
    calib(p, [x])
    assert names(p).count("add") == 2
    assert out_scale(p, "add") == s8(80.0)
    a, b = run(p, x)
    assert (b - 160 * x).abs().max() <= s8(80.0) / 2 + 40 * s8(80.0)  # its input is a's grid
    assert (a - 2 * x).abs().max() <= s8(80.0) / 2 + s8(0.5)


class ConvTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.bn = random_bn(4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.bn(self.conv(x)), self.conv(y)


class BnTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.bn = random_bn(4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.bn(self.c1(x)), self.bn(self.c2(y))


@pytest.mark.parametrize("cls", [ConvTwice, BnTwice])
def test_a_reused_conv_or_batch_norm_is_not_folded(cls: type[nn.Module]) -> None:
    """A09"""
    model, data = cls().eval(), (torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5))
    p = prep(model, data)
    off(p)
    for got, expected in zip(run(p, data), run(model, data), strict=True):
        assert torch.equal(got, expected)
    assert any("not fused: reused" in item.reason for item in p.unfused)


@pytest.mark.parametrize(("cin", "cout", "groups"), [(4, 6, 1), (4, 6, 2), (6, 6, 6), (4, 4, 2)])
def test_batch_norm_folds_into_grouped_transposed_conv(cin: int, cout: int, groups: int) -> None:
    """A10"""
    conv = nn.ConvTranspose2d(cin, cout, 3, groups=groups)
    model = nn.Sequential(conv, random_bn(cout)).eval()
    x = torch.randn(2, cin, 5, 5)
    p = prep(model, x)
    off(p)
    assert op(p, "1").op == "identity"
    assert (run(p, x) - run(model, x)).abs().max() < 1e-5  # folding is float64, rounded once


class ReluAndConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        c = self.conv(x)
        return F.relu(c) + c


def test_a_conv_with_a_second_user_keeps_its_negative_range() -> None:
    """A11"""
    model, x = ReluAndConv().eval(), torch.randn(2, 3, 6, 6)
    p = prep(model, x)
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    calib(p, [x])
    conv = model.conv(x).detach()
    assert out_scale(p, "conv") == s8(float(conv.abs().max()))
    assert op(p, "conv").activation_post_process.activation_post_process.min_val < 0
    assert "group" not in next(n for n, o in p.operators() if o.name == "conv").meta
    reasons = {item.names: item.reason for item in p.unfused}
    assert "is used elsewhere too" in reasons["conv", "_generated_relu_0"]


def test_a_type_rule_reaches_the_fused_group_and_a_name_rule_the_head() -> None:
    """A37"""
    layers = [
        ("c", nn.Conv2d(3, 4, 3)),
        ("b", random_bn(4)),
        ("r", nn.ReLU()),
        ("head", nn.Conv2d(4, 2, 1)),
    ]
    model, x = nn.Sequential(OrderedDict(layers)), torch.randn(1, 3, 8, 8)
    template = ModuleNameTemplate(
        {"": qint8, "c": qint16, "head": torch.float32, "nowhere": qint16}
    )
    p = prep(model, x, qconfig_setter=QconfigSetter(get_qconfig(), [template]))
    assert op(p, "r").activation_post_process.dtype is qint16
    assert op(p, "c").activation_post_process is None
    assert op(p, "head").activation_post_process is None
    calib(p, [x])
    y = run(p, x)
    codes = y / y.abs().max() * 127.5
    assert (codes - codes.round()).abs().max() > 1e-3  # on no int8 grid
    assert p.resolution is not None
    assert any("nowhere" in text for text in p.resolution.unmatched_rules)


class Tied(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.c2.weight = self.c1.weight
        self.bn = random_bn(4) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.bn(self.c1(x)), self.c2(x)


def test_tied_weights_stay_tied_through_prepare_training_copy_and_load() -> None:
    """A39"""
    model, x = Tied(norm=False), torch.randn(2, 3, 5, 5)
    p = prepare(model.train(), x)
    assert p.c1.weight is p.c2.weight
    assert p.c1.weight is not model.c1.weight
    assert len(list(p.parameters())) == 3
    optimizer = torch.optim.SGD(p.parameters(), lr=0.1)
    before = p.c1.weight.detach().clone()
    sum(y.sum() for y in p(x)).backward()
    optimizer.step()
    assert not torch.equal(p.c1.weight, before)
    twin = copy.deepcopy(p)
    assert twin.c1.weight is twin.c2.weight
    twin.load_state_dict(p.state_dict())
    assert twin.c1.weight is twin.c2.weight
    weights = [q for (_, kind), q in scales(p).items() if kind == "weight"]
    assert torch.equal(weights[0], weights[1])
    off(p)
    y1, y2 = run(p, x)
    assert torch.equal(y1, F.conv2d(x, p.c1.weight, p.c1.bias))
    assert torch.equal(y2, F.conv2d(x, p.c2.weight, p.c2.bias))


def test_a_batch_norm_behind_one_of_two_tied_convs_is_not_folded() -> None:
    """A39"""
    model, x = Tied(norm=True).eval(), torch.randn(2, 3, 5, 5)
    p = prep(model, x)
    off(p)
    for got, expected in zip(run(p, x), run(model, x), strict=True):
        assert torch.equal(got, expected)
    assert any("weight of c1 is shared" in item.reason for item in p.unfused)


def test_linear_over_a_sequence_is_not_folded_with_a_norm_of_another_axis() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval()
    model[1].running_mean.uniform_(-1, 1)
    x = torch.randn(2, 6, 4)  # BatchNorm1d normalizes axis 1, the weight's channels are the last
    p = prep(model, x)
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    flat = torch.randn(5, 4)
    p = prep(model, flat)
    off(p)
    assert op(p, "1").op == "identity"
    # numerics page section 4: 1e-5 where batch norm is folded or an operator decomposed
    assert torch.allclose(run(p, flat), run(model, flat), rtol=1e-5, atol=1e-6)


def test_a_batch_norm_with_batch_statistics_is_not_folded() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    p = prep(model, torch.randn(4, 3, 5, 5))
    assert "has no running statistics" in p.unfused[0].reason


def test_group_members_before_the_last_have_no_fake_quantize() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.relu = nn.Conv2d(3, 3, 1), random_bn(3), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(x + self.bn(self.conv(x)))

    x = torch.randn(1, 3, 4, 4)
    p = prep(Residual(), x)
    groups = {o.name: n.meta.get("group") for n, o in p.operators()}
    assert groups["conv"] == groups["bn"] == groups["_generated_add_0"] == groups["relu"] == "relu"
    quantized = {name for (name, kind) in scales(p) if kind == "output"}
    assert quantized == {"_input_0_quant", "relu"}
    set_fake_quantize(p, FakeQuantState.QAT)


def test_a_module_under_two_names_is_replaced_under_both() -> None:
    class TwoNames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 4, 1)
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            return self.second(x)

    model, x = TwoNames(), torch.randn(1, 3, 4, 4)
    p = prep(model, x)
    assert p.first is p.second
    assert type(p.first).__name__ == "Conv2d"
    assert set(model.state_dict()) <= set(p.state_dict())
