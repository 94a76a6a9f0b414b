"""Copies, checkpoints and devices: A25, A26, A28."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.nn.prepared import PreparedModel
from qtune.profiler import QuantAnalysis
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.observer_v2 import HistogramObserver, MinMaxObserver
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from qtune.utils.check_model import check_qat_model

from .steps import EVERYWHERE, calib, calibrated, prep, run, same, scales, stubs, to_integer

OBSERVERS = pytest.mark.parametrize("observer", [MinMaxObserver, HistogramObserver])
"""The two kinds of state: without and with a histogram."""


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)
        self.up = nn.ConvTranspose2d(width, width, 2, groups=2)
        self.act, self.fc = nn.PReLU(width), nn.Linear(width, 2)
        self.register_buffer("shift", torch.randn(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.conv(x + self.shift)))
        return self.fc(torch.sigmoid(self.act(self.up(y))).mean((2, 3)))


def data() -> list[Tensor]:
    return [torch.randn(2, 3, 8, 8) for _ in range(3)]


def setter_of(observer: type, dtype: Any = None) -> QconfigSetter:
    everywhere = [] if dtype is None else [ModuleNameTemplate({"": dtype}, freeze=True)]
    return QconfigSetter(get_qconfig(observer=observer), everywhere)


def trained_twin(model: PreparedModel) -> None:
    """What a user does with a copy: train it on other data."""
    set_fake_quantize(model, FakeQuantState.QAT)
    model.train()
    model(data()[0] * 100).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)


COPIES: dict[str, Callable[[PreparedModel], PreparedModel]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda p: pickle.loads(pickle.dumps(p)),
    "torch.save": lambda p: saved(p),
    "twice": lambda p: copy.deepcopy(copy.deepcopy(p)),
}


def saved(model: PreparedModel) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", COPIES)
@OBSERVERS
def test_a_copy_is_equal_and_shares_nothing(way: str, observer: type, tmp_path: Path) -> None:
    """A25 quantization attributes vanish in a copy, or are shared with it."""
    net, x = Net().eval(), data()[0]
    p = prep(net, x, setter_of(observer))
    calib(p, data())
    expected, before = run(p, x), scales(p)
    twin = COPIES[way](p)
    assert torch.equal(run(twin, x), expected)
    assert {q.state for q in stubs(twin).values()} == {FakeQuantState.VALIDATION}
    assert check_qat_model(twin, x).to_dict() == check_qat_model(p, x).to_dict()
    (integer,) = to_integer(p, x)
    assert torch.equal(to_integer(twin, x)[0], integer)
    trained_twin(twin)
    assert all(torch.equal(before[key], scale) for key, scale in scales(p).items())
    assert {q.state for q in stubs(p).values()} == {FakeQuantState.VALIDATION}
    assert not p.training
    assert torch.equal(run(p, x), expected)
    key = ("_generated_add_0", "output")
    assert not torch.equal(scales(twin)[key], before[key])
    assert not {id(t) for t in every_tensor(p)} & {id(t) for t in every_tensor(twin)}


def every_tensor(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def test_the_analysis_accepts_a_copy(tmp_path: Path) -> None:
    """A25 QuantAnalysis on a copy gives the numbers of the original."""
    net, x = Net().eval(), data()[0]
    p = calibrated(net, x)
    reports = []
    for name, model in (("p", p), ("copy", copy.deepcopy(p))):
        analysis = QuantAnalysis(net, model, "fake_quant", out_dir=str(tmp_path / name))
        analysis.set_bad_case(x)
        analysis.run()
        reports.append(analysis.compare_per_layer().to_dict())
    assert repr(reports[0]) == repr(reports[1])


def checkpoint(model: nn.Module) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    found: dict[str, Tensor] = torch.load(file, weights_only=True)
    return found


@OBSERVERS
@pytest.mark.parametrize("dtype", EVERYWHERE, ids=str)
def test_a_calibrated_state_loads_into_a_fresh_model(dtype: Any, observer: type) -> None:
    """A26 per-channel buffers have size C before their first use; strict loading."""
    x = data()[0]
    p = prep(Net(), x, setter_of(observer, dtype))
    calib(p, data())
    fresh = prepare(Net().train(), x, setter_of(observer, dtype))
    assert {k: v.shape for k, v in fresh.state_dict().items()} == {
        k: v.shape for k, v in p.state_dict().items()
    }
    result = fresh.load_state_dict(checkpoint(p))
    assert result.missing_keys == result.unexpected_keys == []
    set_fake_quantize(fresh.eval(), FakeQuantState.VALIDATION)
    assert torch.equal(run(fresh, x), run(p, x))
    assert same(to_integer(fresh, x)[0], to_integer(p, x)[0])


def test_a_trained_state_loads_back_into_a_calibration_model() -> None:
    """A26 the other direction: QAT to calibration."""
    x = data()[0]
    qat = prepare(Net().train(), x)
    for batch in data():
        qat(batch).sum().backward()
    other = prep(Net(), x)
    set_fake_quantize(other, FakeQuantState.CALIBRATION)
    other.load_state_dict(checkpoint(qat))
    for model in (other, qat.eval()):
        set_fake_quantize(model, FakeQuantState.VALIDATION)
    assert torch.equal(run(other, x), run(qat, x))


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (lambda: Net(width=6), ["conv.weight", "fc.weight"]),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), ["0.weight", "conv.weight"]),
    ],
    ids=["other width", "other layers"],
)
def test_the_state_of_another_architecture_is_refused(
    other: Callable[[], nn.Module], names: list[str]
) -> None:
    """A26 loading another model's state still raises and names the keys."""
    x = data()[0]
    p = calibrated(Net(), x)
    target = prep(other(), x)
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(RuntimeError) as caught:
        target.load_state_dict(checkpoint(p))
    for name in names:
        assert name in str(caught.value)
    assert "prepared from the same float model" in str(caught.value)
    assert before.keys() == target.state_dict().keys()


@OBSERVERS
def test_only_parameters_and_buffers_hold_tensors(observer: type) -> None:
    """A28 a plain attribute would stay behind on the old device."""
    x = data()[0]
    p = prep(Net(), x, setter_of(observer))
    calib(p, data())
    for _ in range(2):
        plain = [
            (name, key)
            for name, module in p.named_modules()
            for key, value in vars(module).items()
            if holds_tensor(value)
        ]
        assert plain == []
        set_fake_quantize(p, FakeQuantState.QAT)
        p.train()(x).sum().backward()
        p.zero_grad(set_to_none=True)
    p.to("meta")
    assert [n for n, t in p.state_dict(keep_vars=True).items() if t.device.type != "meta"] == []
    assert [t for t in every_tensor(p) if t.device.type != "meta"] == []


def holds_tensor(value: Any) -> bool:
    """A plain tensor, also inside a list or tuple; torch's own registries are dicts."""
    if isinstance(value, (list, tuple, set)):
        return any(holds_tensor(item) for item in value)
    return torch.is_tensor(value)


def test_a_moved_model_takes_its_fake_quantizes_along() -> None:
    """A28 double and back: scales stay float32, the numbers come back."""
    x = data()[0]
    p = calibrated(Net(), x)
    expected, before = run(p, x), scales(p)
    p.double()
    assert run(p, x.double()).dtype == torch.float64
    assert {s.dtype for s in scales(p).values()} == {torch.float32}
    p.float()
    assert torch.equal(run(p, x), expected)
    assert all(torch.equal(before[key], scale) for key, scale in scales(p).items())


def test_prepare_of_a_moved_model_makes_its_buffers_on_that_device() -> None:
    """A28 buffers are made where the model is."""
    x = data()[0].to("meta")
    p = prepare(Net().to("meta").eval(), x)
    assert [n for n, t in p.state_dict().items() if t.device.type != "meta"] == []
