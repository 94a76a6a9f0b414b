"""The user's state, copies and devices for every kind of fake-quantize: A25 to A28, and A39."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.check.march import check_model
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.quantization import (
    FakeQuantize,
    FakeQuantState,
    PACTFakeQuantize,
    QConfig,
    QconfigSetter,
    _LearnableFakeQuantize,
    set_fake_quantize,
)
from qtune.quantization.observer_v2 import MinMaxObserver
from qtune.utils.check_model import check_qat_model

from .steps import calib, prep, quantized_module, run, scales, stubs, to_integer

KINDS = pytest.mark.parametrize("kind", [FakeQuantize, _LearnableFakeQuantize, PACTFakeQuantize])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(F.relu(self.conv(x))).mean((2, 3)))


def setter_of(kind: Any) -> QconfigSetter:
    activation = kind.with_args(observer=MinMaxObserver)
    weight = kind.with_args(observer=MinMaxObserver, ch_axis=0, averaging_constant=1.0)
    return QconfigSetter(QConfig(weight=weight, output=activation), templates=[])


def fresh(kind: Any) -> PreparedModel:
    torch.manual_seed(0)
    return prep(Net().eval(), data()[0], setter_of(kind))


def data() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 8, 8, generator=generator) for _ in range(3)]


@KINDS
@pytest.mark.parametrize("order", ["state first", "load first"])
def test_loading_a_state_saved_while_calibrating_does_not_change_the_phase(
    kind: Any, order: str
) -> None:
    """A27 both orders of the documents: set the state and load, load and set the state."""
    x = data()[0]
    p = fresh(kind)
    set_fake_quantize(p, FakeQuantState.CALIBRATION)
    observed, *_ = [run(p, batch) for batch in data()]
    saved = {key: value.clone() for key, value in p.state_dict().items()}
    n = fresh(kind)
    if order == "load first":
        n.load_state_dict(saved)
    set_fake_quantize(n, FakeQuantState.VALIDATION)
    if order == "state first":
        n.load_state_dict(saved)
    assert {fq.state for fq in stubs(n).values()} == {FakeQuantState.VALIDATION}
    before = {key: scale.clone() for key, scale in scales(n).items()}
    y = run(n, x)
    assert not torch.equal(y, observed), "fake-quantized here, only observed there"
    run(n, x * 10)
    assert all(torch.equal(scale, before[key]) for key, scale in scales(n).items())
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    assert torch.equal(run(p, x), y)


@KINDS
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "file"])
def test_a_copy_has_all_and_shares_nothing(kind: Any, way: str) -> None:
    """A25 the copy passes the checks; training it leaves the original alone."""
    x = data()[0]
    p = fresh(kind)
    calib(p, data())
    expected, before = run(p, x), {key: s.clone() for key, s in scales(p).items()}
    if way == "file":
        file = io.BytesIO()
        torch.save(p, file)
        file.seek(0)
        c = torch.load(file, weights_only=False)
    else:
        c = copy.deepcopy(p) if way == "deepcopy" else pickle.loads(pickle.dumps(p))
    assert torch.equal(run(c, x), expected)
    assert {fq.state for fq in stubs(c).values()} == {FakeQuantState.VALIDATION}
    assert c.resolution == p.resolution
    check_qat_model(c, (x,), save_results=False)
    check_model(c, (x,))
    set_fake_quantize(c, FakeQuantState.QAT)
    optimizer = torch.optim.SGD(c.train().parameters(), lr=1e-3)
    c(x * 100).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(scale, before[key]) for key, scale in scales(p).items())
    assert {fq.state for fq in stubs(p).values()} == {FakeQuantState.VALIDATION}
    assert torch.equal(run(p, x), expected)


@KINDS
def test_every_tensor_follows_the_model(kind: Any) -> None:
    """A28"""
    p = fresh(kind)
    calib(p, data())
    left = [
        (name, key)
        for name, module in p.named_modules()
        for key, value in vars(module).items()
        if torch.is_tensor(value)
    ]
    assert left == []
    doubled = copy.deepcopy(p).double()
    assert {fq.scale.dtype for fq in stubs(doubled).values()} == {torch.float32}
    assert run(doubled, data()[0].double()).dtype == torch.float64
    p.to("meta")
    tensors = [*p.named_parameters(), *p.named_buffers()]
    assert [name for name, tensor in tensors if tensor.device.type != "meta"] == []


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.c2.weight = self.c1.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.relu(self.c1(x)), F.relu(self.c2(x))


def codes_of(module: HbirModule) -> list[Any]:
    """Every int8 constant of the integer model that has the shape of a weight."""
    arrays = [value.const_value.numpy() for value in module[0].model.graph.initializers.values()]
    return [v for v in arrays if v.dtype.name == "int8" and v.size == 12]


@KINDS
def test_tied_weights_have_one_parameter_and_equal_codes(kind: Any) -> None:
    """A39 in training, in the copy and in the integer model."""
    torch.manual_seed(0)
    x = data()[0]
    p = prep(Tied().eval(), x, setter_of(kind))
    calib(p, data())
    assert p.c1.weight is p.c2.weight
    assert copy.deepcopy(p).c1.weight is not p.c1.weight
    weights = [scale for (_, port), scale in scales(p).items() if port == "weight"]
    assert torch.equal(weights[0], weights[1])
    own = [parameter for parameter in p.parameters() if parameter is p.c1.weight]
    assert len(own) == 1
    first, second = to_integer(p, x)[0]
    module = quantized_module(p, x)
    found = codes_of(module)
    assert found
    assert all((codes == found[0]).all() for codes in found)
    for got, want in zip((first, second), run(p, x), strict=True):
        step = max(float(fq.scale.detach().max()) for fq in stubs(p).values())
        assert (got - want).abs().max() <= step
