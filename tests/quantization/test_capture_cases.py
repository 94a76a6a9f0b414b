"""Reported faults about what a forward may contain."""

from __future__ import annotations

import threading
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.dtype import qint8
from qtune.errors import GuardError, PrepareError

from .flow import calib, names, off, op, out_scale, prep, run, s8, scales


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.b = nn.Parameter(torch.randn(4))
        self.w2 = nn.Parameter(torch.randn(5, 4 * 6 * 6))

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(input=x, weight=self.w, bias=self.b, padding=1)
        return F.linear(y.flatten(1), weight=self.w2)


def test_functional_layers_called_by_keyword_are_quantized_whole() -> None:
    """A13"""
    model, x = Functional().eval(), torch.randn(2, 3, 6, 6)
    p = prep(model, x)
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    calib(p, [x])
    found = scales(p)
    assert found["_generated_conv2d_0", "weight"].shape == (4,)
    assert found["_generated_linear_0", "weight"].shape == (5,)
    expected = model.w.detach().abs().amax((1, 2, 3)) / 127.5
    assert torch.equal(found["_generated_conv2d_0", "weight"], expected)
    assert op(p, "_generated_conv2d_0").weight_fake_quant.ch_axis == 0
    assert ("_generated_conv2d_0", "output") in found
    assert p.float_ops == ()
    assert set(model.state_dict()) <= set(p.state_dict())


class Scalars(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return 2 + x * 3 - (1 - x) / 4 + self.row


def test_scalars_in_any_place_and_a_broadcast_parameter() -> None:
    """A14"""
    model, x = Scalars().eval(), torch.randn(2, 3, 6, 6)
    p = prep(model, x)
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    calib(p, [x])
    found = scales(p)
    row = [q for (name, kind), q in found.items() if kind.startswith("input-")]
    assert row == [torch.tensor([s8(float(model.row.detach().abs().max()))])]
    xq = torch.clamp(torch.floor(x / s8(float(x.abs().max())) + 0.5), -128, 127) * s8(
        float(x.abs().max())
    )
    # float32 scale or value against the float64 formula: the last bits differ
    assert out_scale(p, "_generated_mul_0") == pytest.approx(s8(float((x * 3).abs().max())))
    assert (run(p, x) - run(model, x)).abs().max() <= 4 * s8(float(run(model, x).abs().max()))
    assert xq.shape == x.shape


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


def test_in_place_operators_are_quantized_like_the_others() -> None:
    """A15"""
    model, x = InPlace().eval(), torch.randn(2, 3, 6, 6)
    p = prep(model, x)
    off(p)
    kept = x.clone()
    assert torch.equal(run(p, x), run(model, x))
    assert torch.equal(x, kept)
    calib(p, [x])
    seen: list[Tensor] = []
    p.conv2.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    run(p, x)
    conv2 = next(n for n, o in p.operators() if o.name == "conv2")
    maker = p.get_submodule(conv2.args[0].target)
    steps = seen[0] / maker.activation_post_process.scale
    assert (steps - steps.round()).abs().max() <= 1e-3
    assert torch.equal(x, kept)


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 4)

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        e = self.emb(ids)
        m = x > 0
        return torch.where(m, e, x.masked_fill(m, 0.0)), ids + 1


def test_masks_and_indices_have_no_fake_quantize() -> None:
    """A16"""
    model, data = Masks().eval(), (torch.tensor([[1, 2, 3]]), torch.randn(1, 3, 4))
    p = prep(model, data)
    off(p)
    assert torch.equal(run(p, data)[0], run(model, data)[0])
    calib(p, [data])
    y, ids = run(p, data)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, data[0] + 1)
    assert y.shape == (1, 3, 4)
    quantized = {name for (name, kind) in scales(p) if kind == "output"}
    assert not {n for n in quantized if "gt" in n or n == "_generated_add_0"}


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


def test_control_flow_on_shapes_is_right_or_refused() -> None:
    """A17"""
    model = Shapes().eval()
    p = prep(model, (torch.randn(1, 3, 8, 8), torch.randn(1, 3)))
    off(p)
    for batch, width in ((1, 8), (4, 8), (1, 10)):
        data = (torch.randn(batch, 3, 8, width), torch.randn(batch, 3))
        assert torch.equal(run(p, data), run(model, data))
    for width in (9, 11):
        with pytest.raises(GuardError, match=r"% 2"):
            run(p, (torch.randn(1, 3, 8, width), torch.randn(1, 3)))


@dataclass
class Out:
    boxes: Tensor
    aux: dict[str, Any]


Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024


@pytest.mark.parametrize(
    ("wrap", "check"),
    [
        (lambda y: Out(y, {"k": (y * 2, None)}), lambda o: (o.boxes, o.aux["k"][0])),
        (lambda y: Pair(y, y * 2), lambda o: (o.a, o.b)),
        (lambda y: [{"p": y}, {"p": y * 2}], lambda o: (o[0]["p"], o[1]["p"])),
        (lambda y: {"x": y, "n": None}, lambda o: (o["x"],)),
    ],
)
def test_structured_outputs_keep_their_type(wrap: Any, check: Any) -> None:
    """A18"""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Any:
            return wrap(self.conv(x))

    model, x = Model().eval(), torch.randn(2, 3, 4, 4)
    p = prep(model, x)
    calib(p, [x])
    assert type(run(p, x)) is type(run(model, x))
    off(p)
    for got, expected in zip(check(run(p, x)), check(run(model, x)), strict=True):
        assert torch.equal(got, expected)


class Subclass(nn.Conv2d):
    """A layer with a constructor of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1)
        self.note = "mine"


class OwnForward(nn.Conv2d):
    """A layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, self.weight, self.bias, self.stride, self.padding))


class Standardized(nn.Conv2d):
    """A layer whose weight is computed."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


def test_subclasses_of_layers_are_quantized_like_the_layers() -> None:
    model = nn.Sequential(
        Subclass(3), OwnForward(3, 4, 3), Standardized(4, 5, 3), nn.Conv2d(5, 1, 1)
    )
    x = torch.randn(2, 3, 10, 10)
    p = prep(model, x)
    assert p.float_ops == ()
    assert {o.op for _, o in p.operators()} >= {"conv2d", "relu"}
    assert sum(o.op == "conv2d" and o.weight_fake_quant is not None for _, o in p.operators()) == 4
    assert names(p)[:4] == ["_input_0_quant", "0", "1", "_generated_relu_0"]
    assert set(model.state_dict()) <= set(p.state_dict())
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    calib(p, [x])
    assert (run(p, x) - run(model, x)).abs().max() < 0.1
    assert op(p, "1").weight_fake_quant.dtype is qint8


class Normalized(nn.Module):
    """Constants of every kind around the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.5, 0.6, 0.7]).view(1, 3, 1, 1))
        self.conv = nn.Conv2d(3, 4, 1)
        self.position = nn.Parameter(torch.randn(1, 4, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv((x - self.mean) / self.std)
        return y + self.position[:, :, : y.shape[2], : y.shape[3]]


def test_buffers_and_slices_of_parameters_are_constants_with_grids_of_their_own() -> None:
    model, x = Normalized().eval(), torch.randn(2, 3, 8, 8)
    p = prep(model, x)
    assert p.float_ops == ()
    off(p)
    for size in (8, 12):
        data = torch.randn(1, 3, size, size)
        # numerics page section 4: 1e-5 where batch norm is folded or an operator decomposed
        assert torch.allclose(run(p, data), run(model, data), rtol=1e-5, atol=1e-6)
    calib(p, [x])
    found = scales(p)
    # float32 scale or value against the float64 formula: the last bits differ
    assert float(found["_generated_sub_0", "input-1"]) == pytest.approx(0.3 / 127.5)
    # float32 scale or value against the float64 formula: the last bits differ
    assert float(found["_generated_div_0.mul", "input-1"]) == pytest.approx(2.0 / 127.5)
    assert (run(p, x) - run(model, x)).abs().max() < 0.2


class Arguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, batch: dict[str, Tensor], *, gain: Tensor, label: Tensor) -> Any:
        return {"y": self.conv(batch["image"]) * gain, "label": label, "ids": batch["ids"]}


def test_dict_and_keyword_arguments_and_values_that_pass_through() -> None:
    model = Arguments().eval()
    batch = {"image": torch.randn(2, 3, 4, 4), "ids": torch.arange(2)}
    data = Inputs(batch, gain=torch.ones(1), label=torch.randn(2))
    p = prep(model, data)
    calib(p, [data])
    out = run(p, data)
    assert torch.equal(out["label"], data.kwargs["label"])
    assert torch.equal(out["ids"], batch["ids"])
    assert set(scales(p)) >= {("_input_0_quant", "output"), ("_input_2_quant", "output")}
    off(p)
    assert torch.equal(run(p, data)["y"], run(model, data)["y"])


def test_a_double_model_stays_double() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Sigmoid()).double(), torch.randn(1, 3, 4, 4)
    p = prep(model, x.double())
    calib(p, [x.double()])
    assert run(p, x.double()).dtype == torch.float64
    assert all(s.dtype == torch.float32 for s in scales(p).values())


class Unknown(nn.Module):
    """A function that nothing in the registry fits, with several results."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, r = torch.linalg.qr(x)
        return self.fc(q) + self.fc(r)[:, :1]


def test_unknown_functions_with_several_results_stay_float() -> None:
    model, x = Unknown().eval(), torch.randn(3, 6, 4)
    p = prep(model, x)
    assert [item.op for item in p.float_ops] == ["torch.linalg.qr"]
    off(p)
    assert torch.equal(run(p, x), run(model, x))
    calib(p, [x])
    assert (run(p, x) - run(model, x)).abs().max() < 0.05
    assert names(p).count("fc") == 2


class Shared(nn.Module):
    """One ReLU object for everything, as in many ResNets."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1, self.c2 = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.b1(self.c1(x)))
        return self.relu(self.c2(y) + x)


def test_a_shared_relu_leaves_the_other_members_fused() -> None:
    model, x = Shared().eval(), torch.randn(2, 3, 4, 4)
    p = prep(model, x)
    groups = {o.name: n.meta.get("group") for n, o in p.operators()}
    assert groups["c1"] == groups["b1"] == "b1"
    assert groups["c2"] == groups["_generated_add_0"] == "_generated_add_0"
    assert groups["relu"] is None
    assert op(p, "relu").activation_post_process is None
    assert {item.reason for item in p.unfused} == {"not fused: reused: relu is called 2 times"}
    off(p)
    # numerics page section 4: 1e-5 where batch norm is folded or an operator decomposed
    assert torch.allclose(run(p, x), run(model, x), rtol=1e-5, atol=1e-6)


def test_a_model_that_cannot_be_copied_is_named() -> None:
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()
    with pytest.raises(PrepareError, match=r"Linear can't be copied"):
        prep(model, torch.randn(1, 2))
