"""Converted modules, called one by one, and the operator that runs their programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from qtune import qint8
from qtune.arith.quantize import quantize
from qtune.errors import HbirError, RunError
from qtune.nn import quantized
from qtune.nn.quantized import QTensor, QuantizedOp
from qtune.nn.quantized.program import Signature
from qtune.quantization import convert

from ...cases.steps import calibrated

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.flat, self.head = nn.Flatten(), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.flat(self.act(self.norm(self.conv(x)))))


@pytest.fixture
def pair() -> tuple[Any, Any]:
    prepared = calibrated(Net(), X)
    return prepared, convert(prepared)


def test_modules_are_named_like_the_float_ones(pair: tuple[Any, Any]) -> None:
    _, model = pair
    assert type(model.act) is quantized.ConvReLU2d
    assert type(model.head) is quantized.Linear
    assert isinstance(model.act, QuantizedOp)
    assert isinstance(model.conv, nn.Identity)
    assert isinstance(model.norm, nn.Identity)


def test_modules_run_one_by_one_and_pass_qtensors(pair: tuple[Any, Any]) -> None:
    prepared, model = pair
    x = model._input_0_quant(X)
    assert isinstance(x, QTensor)
    assert x.dtype is qint8
    expected = quantize(X.numpy(), x.q_per_channel_scales().numpy(), qint8)
    assert (x.int_repr().numpy() == expected).all()
    y = model.act(x)
    assert y.q_scale() == float(prepared.act.activation_post_process.scale)
    assert float(model.act.scale) == y.q_scale()
    z = model.head(model.flat(y))
    assert type(z) is torch.Tensor
    assert z.dtype is torch.float32  # high precision
    assert torch.equal(model._output_0_dequant(z), model(X))
    assert torch.equal(model.head(torch.flatten(model.act(model.norm(model.conv(x))), 1)), z)


def test_the_weight_is_codes_with_one_scale_for_each_channel(pair: tuple[Any, Any]) -> None:
    prepared, model = pair
    weight = model.act.weight()
    assert weight.int_repr().dtype is torch.int8
    assert weight.q_per_channel_axis() == 0
    real = prepared.conv.weight_fake_quant(prepared.conv.weight)
    assert torch.equal(weight.dequantize(), real.detach())
    assert torch.equal(model.act.bias(), prepared.conv.bias.detach())
    assert model.flat.weight() is None
    assert model.flat.bias() is None


def test_the_state_has_no_float_weight(pair: tuple[Any, Any]) -> None:
    _, model = pair
    state = model.state_dict()
    kinds = {name: value.dtype for name, value in state.items() if name.endswith(".weight")}
    assert kinds == {"act.members.0.weight": torch.int8, "head.members.0.weight": torch.int8}
    assert not any("observer" in name for name in state)
    assert not list(model.parameters())


def test_a_module_asks_for_float32_and_the_right_operands(pair: tuple[Any, Any]) -> None:
    _, model = pair
    with pytest.raises(RunError, match=r"expected a float32 tensor, got torch.float64"):
        model._input_0_quant(X.double())
    with pytest.raises(RunError, match=r"^act: expected 1 operands, got 2"):
        model.act(X, X)


def test_a_program_refuses_other_shapes_and_another_content(pair: tuple[Any, Any]) -> None:
    _, model = pair
    model(X)
    (packed,) = model.act._programs.values()
    codes = model._input_0_quant(X).int_repr()
    run = torch.ops.qtune.run_program
    (result,) = run([codes], packed.program, packed.signature)
    assert torch.equal(result, model.act(model._input_0_quant(X)).int_repr())
    with pytest.raises(RunError, match=r"was made for int8\[2,3,6,6\], got int8\[1,3,6,6\]"):
        run([codes[:1]], packed.program, packed.signature)
    other = packed.signature[:-1] + ("0" if packed.signature[-1] != "0" else "1")
    with pytest.raises(HbirError, match=r"does not have the content that its signature names"):
        run([codes], packed.program, other)


def test_a_program_has_a_form_for_fake_tensors(pair: tuple[Any, Any]) -> None:
    _, model = pair
    model(X)
    (packed,) = model.act._programs.values()
    with FakeTensorMode() as mode:
        codes = mode.from_tensor(torch.zeros(2, 3, 6, 6, dtype=torch.int8))
        program = mode.from_tensor(packed.program)
        (result,) = torch.ops.qtune.run_program([codes], program, packed.signature)
    assert result.shape == (2, 4, 4, 4)
    assert result.dtype is torch.int8
    assert Signature.read(packed.signature).name == "act"


def test_one_program_for_each_shape(pair: tuple[Any, Any]) -> None:
    _, model = pair
    for batch in (2, 1, 2):
        model(X[:batch])
    assert len(model.act._programs) == 2
