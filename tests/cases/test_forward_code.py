"""What a forward may contain: A13, A14, A15, A16, A17."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qtune
from qtune.errors import GuardError
from qtune.nn.propagate import value_quantizers
from qtune.quantization import FakeQuantState, set_fake_quantize
from qtune.utils.check_model import check_qat_model

from .steps import (
    EVERYWHERE,
    INT8,
    STEP,
    calib,
    calibrated,
    distance,
    off,
    prep,
    quantized_module,
    run,
    s8,
    scale_of,
    stubs,
    to_integer,
)

BOTH = pytest.mark.parametrize("dtype", [qtune.qint8, qtune.qint16], ids=str)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.b = nn.Parameter(torch.randn(4))
        self.w2 = nn.Parameter(torch.randn(5, 4 * 6 * 6) / 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(input=x, weight=self.w, bias=self.b, padding=1)
        return F.linear(y.flatten(1), weight=self.w2)


class FunctionalTransposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(3, 4, 3, 3)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv_transpose2d(stride=2, bias=self.b, weight=self.w, input=x)


class Functional1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(weight=self.w, input=x.flatten(2), padding=1)


@pytest.mark.parametrize("setter", [None, INT8], ids=["high precision", "int8"])
@pytest.mark.parametrize(
    ("cls", "weights"),
    [
        (Functional, {"_generated_conv2d_0": 4, "_generated_linear_0": 5}),
        (FunctionalTransposed, {"_generated_conv_transpose2d_0": 4}),
        (Functional1d, {"_generated_conv1d_0": 4}),
    ],
)
def test_layers_called_by_keyword_are_quantized(
    cls: type[nn.Module], weights: dict[str, int], setter: Any
) -> None:
    """A13 functional conv and linear with keyword arguments only."""
    model, x = cls().eval(), torch.randn(2, 3, 6, 6)
    p = prep(model, x, setter)
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    assert p.float_ops == ()
    calib(p, [x])
    report = check_qat_model(p, x)
    assert {row.name: row.dtype for row in report.weights} == dict.fromkeys(weights, "qint8")
    found = {row.name: row.out_dtype for row in report.outputs}
    for position, (name, channels) in enumerate(weights.items()):
        weight = stubs(p)[name, "weight"]
        assert weight.scale.shape == (channels,)
        last = position == len(weights) - 1
        assert found[name] == ("torch.float32" if last and setter is None else "qint8")
    (y,) = to_integer(p, x)
    assert distance(y, run(p, x)) <= 0.02 * float(run(p, x).abs().max())
    assert distance(y, run(model, x)) <= 0.05 * float(run(model, x).abs().max())


def test_the_channel_axis_is_that_of_the_outputs() -> None:
    """A13 axis 0 for both weights."""
    model, x = Functional().eval(), torch.randn(2, 3, 6, 6)
    p = calibrated(model, x)
    for name, weight in (("conv2d", model.w), ("linear", model.w2)):
        quantizer = stubs(p)[f"_generated_{name}_0", "weight"]
        expected = weight.detach().abs().flatten(1).amax(1) / 127.5
        assert quantizer.ch_axis == 0
        assert torch.equal(quantizer.scale, expected)


class Scalars(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return 2 + x * 3 - (1 - x) / 4 + self.row


@BOTH
def test_scalars_may_come_first(dtype: qtune.QuantDType) -> None:
    """A14 add and mul with a scalar as the first operand, and a broadcast parameter."""
    model, x = Scalars().eval(), torch.randn(2, 3, 6, 6)
    p = prep(model, x, EVERYWHERE[dtype])
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    calib(p, [x])
    inputs = [(key, q) for key, q in stubs(p).items() if key[1].startswith("input-")]
    assert len(inputs) == 1, "only the parameter has a fake-quantize as operand"
    (_, row), divisor = inputs[0], 127.5 if dtype is qtune.qint8 else 32767.5
    assert torch.equal(row.scale, model.row.detach().abs().max().reshape(1) / divisor)
    real = {
        "mul_0": x * 3,
        "add_0": 2 + x * 3,
        "sub_0": 1 - x,
        "div_0": (1 - x) / 4,
        "sub_1": 2 + x * 3 - (1 - x) / 4,
        "add_1": model(x).detach(),
    }
    outputs = {name for name, kind in stubs(p) if kind == "output"} - {"_input_0_quant"}
    assert len(outputs) == len(real)
    found = sorted(scale_of(p, name) for name in outputs)
    expected = sorted(float(v.abs().max()) / divisor for v in real.values())
    # float32 scales, 2**-24 each
    assert found == pytest.approx(expected, rel=1e-6)
    (y,) = to_integer(p, x)
    step = float(run(model, x).abs().max()) / divisor
    assert distance(y, run(p, x)) <= 5 * step  # one step of each of six operators, weighted
    assert distance(run(p, x), run(model, x)) <= 4 * step


SCALAR_FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: 2 + x,
    "torch.add": lambda x: torch.add(2.0, x),
    "sub": lambda x: 2 - x,
    "mul": lambda x: -3 * x,
    "div": lambda x: 1 / (x + 6),
    "rsub": lambda x: torch.rsub(x, 5),
    "maximum": lambda x: torch.clamp(x, min=0.25),
    "pow": lambda x: (x + 3) ** 2,
    "bool": lambda x: True + x,
}


@pytest.mark.parametrize("kind", SCALAR_FIRST)
def test_a_scalar_operand_has_no_fake_quantize(kind: str) -> None:
    """A14 each operator alone, in every stage."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return SCALAR_FIRST[kind](x)

    x = torch.linspace(-2, 2, 64).reshape(2, 32)
    p = prep(Model(), x)
    off(p)
    assert torch.equal(run(p, x), run(Model(), x))
    calib(p, [x])
    assert p.float_ops == ()
    assert not [key for key in stubs(p) if key[1].startswith("input-")]
    (y,) = to_integer(p, x)
    reach = s8(float(run(Model(), x).abs().max()))
    assert distance(y, run(p, x)) <= 3 * reach * STEP  # pow and div have two operators
    assert distance(y, run(Model(), x)) <= 6 * reach  # the input's own rounding included


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y.relu_()
        y += 1
        y[:, 0] *= 2
        return self.conv2(y)


class InPlaceFunctions(InPlace):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        F.relu(y, inplace=True)
        y.add_(1).mul_(0.5)
        torch.sigmoid_(y[:, 1:])
        y.unsqueeze_(0).squeeze_(0)
        return self.conv2(y)


class InPlaceOnInput(InPlace):
    """The float model changes its own argument; the user's copy is his affair, but the same."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x -= 0.5
        x[:, :, 0] = 0.0
        return self.conv2(self.conv(x))


@BOTH
@pytest.mark.parametrize("cls", [InPlace, InPlaceFunctions, InPlaceOnInput])
def test_in_place_results_are_quantized_and_used(
    cls: type[nn.Module], dtype: qtune.QuantDType
) -> None:
    """A15 the quantized result of an in-place operator must not be dropped."""
    model, x = cls().eval(), torch.randn(2, 3, 6, 6)
    kept = x.clone()
    p = prep(model, x, EVERYWHERE[dtype])
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    calib(p, [x])
    seen: list[Tensor] = []
    p.get_submodule("conv2").register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    run(p, x)
    fed = next(node.args[0] for node, op in p.operators() if op.name == "conv2")
    quantizer = value_quantizers(p)[fed]
    assert quantizer is not None
    steps = seen[0] / quantizer.scale
    # code * scale / scale in float32: off by 1.2e-7 of the code, 0.004 at the end of qint16
    assert float((steps - steps.round()).abs().max()) <= (1e-3 if dtype is qtune.qint8 else 5e-3)
    assert float(steps.abs().max()) > 10  # a real grid, not a silent scale
    (y,) = to_integer(p, x)
    assert distance(y, run(p, x)) <= 0.05 * float(run(p, x).abs().max())
    assert torch.equal(x, kept)
    # another input than the recorded one goes the same way
    other = torch.randn(3, 3, 9, 7)
    off(p)
    assert torch.equal(run(p, other), run(model, other))


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 4)

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        e = self.emb(ids)
        m = x > 0
        return torch.where(m, e, x.masked_fill(m, 0.0)), ids + 1


@BOTH
@pytest.mark.parametrize("shape", [(1, 3), (2, 5)])
def test_masks_and_indices_have_no_observer(shape: tuple[int, int], dtype: Any) -> None:
    """A16 bool and integer tensors in every state and stage."""
    ids, x = torch.randint(0, 10, shape), torch.randn(*shape, 4)
    model = Masks().eval()
    p = prep(model, (ids, x), EVERYWHERE[dtype])
    calib(p, [(ids, x)])
    assert set(stubs(p)) == {
        ("emb", "input-0"),
        ("_input_1_quant", "output"),
        ("_generated_masked_fill_0", "output"),
        ("_generated_where_0", "output"),
    }
    for state in FakeQuantState:
        set_fake_quantize(p, state)
        y, second = run(p, (ids, x))
        assert second.dtype is torch.int64
        assert torch.equal(second, ids + 1)
        if state in (FakeQuantState._FLOAT, FakeQuantState.CALIBRATION):
            assert torch.equal(y, model(ids, x)[0])
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    y = run(p, (ids, x))[0]
    got, second = to_integer(p, (ids, x))[0]
    assert second.dtype is torch.int64
    assert torch.equal(second, ids + 1)
    assert distance(got, y) <= 2 * scale_of(p, "_generated_where_0") * STEP


class Shapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        while e.dim() < x.dim():
            e = e[..., None]
        if x.shape[-1] % 2:
            x = F.pad(x, (0, 1))
        return self.conv(x) * e


def sized(batch: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 8, width), torch.randn(batch, 3)


@pytest.mark.parametrize("example", [8, 9])
def test_control_flow_on_shapes_is_right_or_refused(example: int) -> None:
    """A17 frozen to the example's size it must not give a wrong number."""
    model = Shapes().eval()
    p = prep(model, sized(1, example))
    off(p)
    for width in (8, 9, 10, 11):
        for batch in (1, 4):
            data = sized(batch, width)
            if width % 2 == example % 2:
                assert torch.equal(run(p, data), run(model, data))
                continue
            with pytest.raises(GuardError, match=r"% 2") as caught:
                run(p, data)
            assert "test_forward_code.py" in str(caught.value)  # the line of the if
    with pytest.raises(GuardError, match="dim"):
        run(p, (torch.randn(3, 8, 8), torch.randn(1, 3)))


def test_an_exported_model_takes_other_batches_and_no_other_sizes() -> None:
    """A17 down to the integer model."""
    model = Shapes().eval()
    p = calibrated(model, sized(2, 9))
    data = sized(4, 9)
    first, second = to_integer(p, sized(2, 9), sized(1, 9), data)
    assert first.shape == (1, 3, 8, 10)
    assert distance(second, run(p, data)) <= 0.02 * float(run(p, data).abs().max())
    module = quantized_module(p, sized(2, 9))
    with pytest.raises(qtune.errors.RunError, match=r"expected shape \(2, 3, 8, 9\)"):
        module[0](*sized(2, 8))
