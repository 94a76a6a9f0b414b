"""Reported faults about calibration, copies, loading and devices."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.dtype import qint8, qint16
from qtune.errors import NotCalibratedError, PrepareError
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    QuantStub,
    auto_calibrate,
    get_qconfig,
    load_calib_state_dict,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import pre_export
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from qtune.quantizers.fake_quantize import unobserved

from .flow import calib, op, out_scale, prep, run, s8, s16, scales


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.bn = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn(self.conv(x)))
        return self.fc(torch.sigmoid(y).mean((2, 3)))


def data(count: int = 3) -> list[Tensor]:
    return [torch.randn(2, 3, 8, 8) for _ in range(count)]


def test_calibrating_the_wrong_model_is_an_error_that_lists_every_fake_quantize() -> None:
    """A07"""
    net = Net().eval()
    p = prep(copy.deepcopy(net), data()[0])
    for x in data():
        run(net, x)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    with pytest.raises(NotCalibratedError) as caught:
        run(p, data()[0])
    with pytest.raises(NotCalibratedError):
        pre_export(p)
    for name in ("_input_0_quant", "conv weight", "_generated_relu_0", "_generated_sigmoid_0"):
        assert name in str(caught.value)
    calib(p, data())
    assert unobserved(p) == []
    run(p, data()[0])


def test_a_copy_is_equal_and_independent() -> None:
    """A25"""
    p = prep(Net(), data()[0])
    calib(p, data())
    x = data()[0]
    expected = run(p, x)
    for twin in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert torch.equal(run(twin, x), expected)
        assert {q.state for _, _, q in iter_stubs(twin)} == {FakeQuantState.VALIDATION}
        before = scales(p)
        set_fake_quantize(twin, FakeQuantState.QAT)
        twin.train()(x * 100)
        after = scales(p)
        assert all(torch.equal(before[key], after[key]) for key in before)
        assert torch.equal(run(p, x), expected)
        assert not torch.equal(
            scales(twin)["_input_0_quant", "output"], before["_input_0_quant", "output"]
        )


def test_a_calibrated_state_loads_into_a_fresh_model_and_back() -> None:
    """A26"""
    p = prep(Net(), data()[0])
    calib(p, data())
    file = io.BytesIO()
    torch.save(p.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    fresh = prepare(Net().train(), data()[0])
    assert fresh.load_state_dict(state).missing_keys == []
    set_fake_quantize(fresh.eval(), FakeQuantState.VALIDATION)
    x = data()[0]
    assert torch.equal(run(fresh, x), run(p, x))
    p.load_state_dict(fresh.state_dict())
    with pytest.raises(RuntimeError, match=r"conv\.weight") as caught:
        prep(Net(width=5), data()[0]).load_state_dict(state)
    assert "prepared from the same float model" in str(caught.value)
    with pytest.raises(RuntimeError, match="fc.weight"):
        prep(nn.Sequential(nn.Conv2d(3, 4, 3)), data()[0]).load_state_dict(state)


def test_everything_moves_with_the_model() -> None:
    """A28"""
    p = prep(Net(), data()[0])
    calib(p, data())
    plain = [
        (name, key)
        for name, module in p.named_modules()
        for key, value in vars(module).items()
        if torch.is_tensor(value)
    ]
    assert plain == []
    p.to("meta")
    tensors = [*p.named_parameters(), *p.named_buffers()]
    assert [name for name, t in tensors if t.device.type != "meta"] == []


class Stub(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()

    def forward(self, x: Tensor) -> Tensor:
        return self.quant(x)


def test_promotion_to_int16_derives_the_scale_again() -> None:
    """A36"""
    x = torch.linspace(-3, 3, 1001)
    p = prep(Stub(), x)
    calib(p, [x])
    quantizer = op(p, "quant").activation_post_process
    first = quantizer.scale.clone()
    quantizer.set_dtype(qint16)
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qint16})])
    p2 = prep(Stub(), x, qconfig_setter=setter)
    calib(p2, [x])
    assert out_scale(p, "quant") == s16(3.0) == out_scale(p2, "quant")
    assert (run(p, x) - x).abs().max() <= 4.6e-05
    quantizer.set_dtype(qint8)
    assert torch.equal(quantizer.scale, first)
    assert float(first) == s8(3.0)


def test_a_training_step_moves_the_weights_and_all_gradients_are_finite() -> None:
    p = prepare(Net().train(), data()[0])
    optimizer = torch.optim.SGD(p.parameters(), lr=0.1)
    before = {name: value.detach().clone() for name, value in p.named_parameters()}
    for x in data():
        loss = p.train()(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(v.grad is not None and v.grad.isfinite().all() for v in p.parameters())
    assert all(not torch.equal(before[n], v) for n, v in p.named_parameters())
    set_fake_quantize(p.eval(), FakeQuantState.VALIDATION)
    assert run(p, data()[0]).isfinite().all()


def test_a_qat_model_that_was_never_run_says_that_nothing_is_calibrated() -> None:
    p = prep(Net(), data()[0])
    with pytest.raises(NotCalibratedError, match="nothing is calibrated"):
        run(p, data()[0])


def test_calibration_goes_on_after_eval() -> None:
    p = prep(Stub(), torch.zeros(4))
    set_fake_quantize(p, FakeQuantState.CALIBRATION)
    p.eval()
    x = torch.tensor([1.0, -2.0, 0.5, 0.0])
    assert torch.equal(run(p, x), x)
    assert out_scale(p, "quant") == s8(2.0)


def test_auto_calibrate_takes_what_loaders_yield() -> None:
    x, y = torch.full((2, 3, 8, 8), 3.0), torch.zeros(2)
    for batch in (x, (x, y), [x, y], (x,)):
        p = auto_calibrate(prep(Net(), data()[0]), [batch, batch])
        assert out_scale(p, "_input_0_quant") == s8(3.0)
        assert {q.state for _, _, q in iter_stubs(p)} == {FakeQuantState.VALIDATION}
    p = auto_calibrate(prep(Net(), x), [x, x * 9], num_steps=1)
    assert out_scale(p, "_input_0_quant") == s8(3.0)
    p = auto_calibrate(prep(Net(), x), [{"image": x}], batch_to_inputs=lambda b: b["image"])
    assert out_scale(p, "_input_0_quant") == s8(3.0)
    with pytest.raises(PrepareError, match="gave no batch"):
        auto_calibrate(prep(Net(), x), [])


def test_load_calib_state_dict_gives_the_calibrated_numbers() -> None:
    p = auto_calibrate(prep(Net(), data()[0]), data())
    fresh = load_calib_state_dict(prep(Net(), data()[0]), p.state_dict())
    set_fake_quantize(fresh, FakeQuantState.VALIDATION)
    x = data()[0]
    assert torch.equal(run(fresh, x), run(p, x))


def test_batches_that_forward_does_not_take_are_one_clear_error() -> None:
    x = data()[0]
    p = prep(Net(), x)
    with pytest.raises(PrepareError, match=r"auto_calibrate: batch 1: .* forward takes \(x\)"):
        auto_calibrate(p, [x, Inputs(x, x)])
