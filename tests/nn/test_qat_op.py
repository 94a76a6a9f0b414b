"""One operator of a prepared model."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qtune.nn.qat as qat
from qtune.dtype import qint8, qint16
from qtune.nn.qat import QATOp, class_name, iter_stubs, qat_class
from qtune.ops.registry import find_module, spec
from qtune.qconfig.qconfig import weight_constructor
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState, set_fake_quantize


def scale8(absmax: float) -> float:
    return float(torch.tensor(absmax) / torch.tensor(127.5))


def operator(module: nn.Module, *, output: bool = True, weight: bool = False) -> QATOp:
    found = find_module(type(module))
    assert found is not None
    entry, target = found
    bound = target.bind(module, None)
    op = qat_class(entry, target.cls)(entry.name, "op", bound.attrs, float_type="torch.nn.X")
    op.adopt(module, target.params)
    if output:
        op.activation_post_process = FakeQuantize(dtype=qint8, name="op")
    if weight:
        axis = entry.weight_axis(bound.attrs)
        channels = module.weight.shape[axis] * op.weight_groups(bound.attrs)
        op.weight_fake_quant = weight_constructor(qint8)(ch_axis=axis, channel_len=channels)
    return op


def none_for(op: QATOp) -> tuple[None, ...]:
    return (None,) * (len(op.spec.roles) - 1)


def test_classes_are_named_like_the_float_classes_and_pickle() -> None:
    assert qat.Conv2d.__name__ == "Conv2d"
    assert str(qat.ReLU) == "<class 'qtune.nn.qat.ReLU'>"
    assert pickle.loads(pickle.dumps(qat.Add)) is qat.Add
    assert issubclass(qat.Conv2d, QATOp)
    assert class_name(spec("conv2d")) == "Conv2d"
    assert class_name(spec("add")) == "Add"
    assert "Conv2d" in dir(qat)
    with pytest.raises(AttributeError, match="Nonsense"):
        qat.Nonsense  # noqa: B018


def test_the_float_parameters_keep_their_names_and_identity() -> None:
    conv = nn.Conv2d(2, 3, 1)
    op = operator(conv, output=False)
    assert op.weight is conv.weight
    assert list(op.state_dict()) == ["weight", "bias"]
    assert op.extra_repr() == conv.extra_repr()


def test_an_absent_bias_stays_absent() -> None:
    op = operator(nn.Conv2d(2, 3, 1, bias=False), output=False)
    assert op.bias is None
    x = torch.randn(1, 2, 4, 4)
    assert torch.equal(op(x, None, None), F.conv2d(x, op.weight))


def test_float_state_is_torchs_own_function() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1)
    op = operator(conv, weight=True)
    set_fake_quantize(op, FakeQuantState._FLOAT)
    x = torch.randn(2, 2, 5, 5)
    assert torch.equal(op(x, *none_for(op)), conv(x))


def test_weight_and_output_are_fake_quantized() -> None:
    lin = nn.Linear(2, 2, bias=False)
    lin.weight.data = torch.tensor([[1.0, 0.3], [10.0, 0.3]])
    op = operator(lin, weight=True)
    x = torch.eye(2)
    set_fake_quantize(op, FakeQuantState.CALIBRATION)
    assert torch.equal(op(x, None, None), lin(x))
    set_fake_quantize(op, FakeQuantState.VALIDATION)
    s = torch.tensor([[scale8(1.0)], [scale8(10.0)]])
    weight = torch.clamp(torch.floor(lin.weight / s + 0.5), -128, 127) * s
    out = torch.tensor(scale8(10.0))
    expected = torch.clamp(torch.floor((x @ weight.T) / out + 0.5), -128, 127) * out
    assert torch.equal(op(x, None, None), expected)


def test_grouped_transposed_conv_has_one_weight_scale_per_real_output_channel() -> None:
    """A12"""
    conv = nn.ConvTranspose2d(4, 6, 1, groups=2, bias=False)
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    conv.weight.data[:2] = values[:3].view(1, 3, 1, 1)
    conv.weight.data[2:] = values[3:].view(1, 3, 1, 1)
    op = operator(conv, weight=True)
    set_fake_quantize(op, FakeQuantState.CALIBRATION)
    op(torch.ones(1, 4, 2, 2), None, None)
    assert op.weight_fake_quant is not None
    assert torch.equal(op.weight_fake_quant.scale, values / 127.5)
    set_fake_quantize(op, FakeQuantState.VALIDATION)
    quantized = op.quantize_weight(conv.weight, op.attrs)
    assert quantized.shape == conv.weight.shape
    assert torch.allclose(quantized, conv.weight, rtol=1 / 254)  # half a step, absmax / 255


def test_a_table_is_evaluated_in_double_and_rounded_once() -> None:
    op = operator(nn.Sigmoid())
    op.activation_post_process.set_qparams(1 / 256)
    set_fake_quantize(op, FakeQuantState.VALIDATION)
    x = torch.linspace(-4, 4, 1001)
    wide = torch.sigmoid(x.double())
    expected = torch.clamp(torch.floor(wide / (1 / 256) + 0.5), -128, 127) / 256
    got = op(x)
    assert got.dtype == torch.float32
    assert torch.equal(got, expected.float())


def test_a_table_in_half_keeps_its_dtype() -> None:
    op = operator(nn.Tanh())
    op.activation_post_process.set_qparams(1 / 128)
    set_fake_quantize(op, FakeQuantState.VALIDATION)
    assert op(torch.ones(3, dtype=torch.half)).dtype == torch.half


def test_gradients_flow_through_a_table() -> None:
    op = operator(nn.Sigmoid())
    op.activation_post_process.set_qparams(1 / 128)
    x = torch.zeros(1, requires_grad=True)
    op.train()(x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(0.25)  # sigmoid'(0)


def test_batch_norm_alone_keeps_running_statistics_only_in_training() -> None:
    torch.manual_seed(0)
    bn, twin = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    op = operator(bn)
    set_fake_quantize(op, FakeQuantState._FLOAT)
    x = torch.randn(4, 3, 5, 5) + 2
    op.train()
    assert torch.equal(op(x, *none_for(op)), twin(x))
    assert torch.equal(op.running_mean, twin.running_mean)
    assert int(op.num_batches_tracked) == 1
    op.eval(), twin.eval()
    assert torch.equal(op(x, *none_for(op)), twin(x))
    assert int(op.num_batches_tracked) == 1


def test_stubs_are_listed_with_their_kinds() -> None:
    op = operator(nn.Linear(2, 2), weight=True)
    op.quantize_input(0, FakeQuantize(dtype=qint16))
    assert [(name, kind) for name, kind, _ in iter_stubs(op)] == [
        ("op", "input-0"),
        ("op", "weight"),
        ("op", "output"),
    ]


def test_copies_share_nothing() -> None:
    op = operator(nn.Linear(2, 2), weight=True)
    set_fake_quantize(op, FakeQuantState.CALIBRATION)
    op(torch.ones(1, 2), None, None)
    twin = copy.deepcopy(op)
    loaded = pickle.loads(pickle.dumps(op))
    for other in (twin, loaded):
        assert type(other) is type(op)
        assert other.activation_post_process.state is FakeQuantState.CALIBRATION
        other(torch.ones(1, 2) * 100, None, None)
    assert op.activation_post_process.scale.item() < 1
