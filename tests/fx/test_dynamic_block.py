"""Dynamic blocks: loops that run a varying number of times over the same operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture import capture
from qtune.errors import ArgumentError, GuardError
from qtune.fx.jit_scheme import Tracer
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export
from tests.capture.replay import assert_same_call


class Refine(nn.Module):
    """Rounds of conv, norm, residual, activation until the data are small."""

    def __init__(self, block: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.block = block

    def step(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)) * 0.25 + x * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        while x.abs().max() > 1:
            if self.block:
                with Tracer.dynamic_block(self, "step"):
                    x = self.step(x)
            else:
                x = self.step(x)
        return x.mean((2, 3))


class Net(nn.Module):
    def __init__(self, block: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.refine = Refine(block)

    def forward(self, x: Tensor) -> Tensor:
        return self.refine(self.stem(x))


def net(block: bool = True) -> Net:
    torch.manual_seed(0)
    made = Net(block).eval()
    made.refine.norm.running_var.uniform_(0.5, 2)
    return made


def image(gain: float) -> Tensor:
    return gain * torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


GAINS = (0.3, 1.0, 2.0, 4.0)


def rounds(model: Net, x: Tensor) -> int:
    calls: list[int] = []
    handle = model.refine.conv.register_forward_hook(lambda *_: calls.append(1))
    model(x)
    handle.remove()
    return len(calls)


def test_the_examples_take_different_numbers_of_rounds() -> None:
    counts = [rounds(net(), image(gain)) for gain in GAINS]

    assert counts == [0, 1, 2, 3]


def test_the_block_changes_nothing_for_the_float_model() -> None:
    x = image(2.0)
    assert torch.equal(net(True)(x), net(False)(x))


@pytest.mark.parametrize("block", [True, False])
def test_every_number_of_rounds_is_a_branch(block: bool) -> None:
    model = net(block)
    recorded = capture(model, [image(gain) for gain in GAINS], fixed=True)
    assert len(recorded.graph_branches) == len(GAINS)
    for gain in GAINS:
        assert_same_call(recorded, model, image(gain))


def test_all_rounds_are_the_same_operators_under_the_names_of_the_block() -> None:
    prepared = prepare(net(), [image(gain) for gain in GAINS])
    inside = {op.name for _, op in prepared.operators() if "refine" in op.name}
    assert inside == {
        *("refine.conv", "refine.norm", "_generated_refine_step_add_0"),
        *("_generated_refine_step_mul_0", "_generated_refine_step_mul_1"),
        "_generated_refine_step_relu_0",
    }
    assert prepared.get_submodule("refine.norm").op == "identity"  # folded into the conv


def test_without_a_block_a_looped_layer_is_shared_and_left_unfused() -> None:
    prepared = prepare(net(False), [image(gain) for gain in GAINS])
    assert any("refine.conv is called" in item.reason for item in prepared.unfused)


def test_calibrated_rounds_are_near_the_float_model_and_export() -> None:
    model = net()
    prepared = prepare(model, [image(gain) for gain in GAINS]).eval()
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    with torch.no_grad():
        for gain in GAINS:
            # the norm is folded: 1e-5 relative (numerics.md section 5), more after several rounds
            torch.testing.assert_close(
                prepared(image(gain)), model(image(gain)), rtol=1e-4, atol=1e-6
            )
        set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
        for gain in GAINS:
            prepared(image(gain))
        set_fake_quantize(prepared, FakeQuantState.VALIDATION)
        for gain in GAINS:
            expected: Any = prepared(image(gain))
            assert torch.equal(export(prepared, image(gain))[0](image(gain)), expected)
            # int8: a few of its steps over all rounds
            assert float((expected - model(image(gain))).abs().max()) < 0.1


def test_another_number_of_rounds_than_the_examples_is_refused() -> None:
    prepared = prepare(net(), [image(gain) for gain in GAINS[1:3]]).eval()
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    with pytest.raises(GuardError, match="none of the 2 recorded branches"):
        prepared(image(GAINS[3]))


def test_wrong_arguments_are_refused_where_the_block_is() -> None:
    for module, name in ((nn.ReLU(), "a b"), (None, "step"), (nn.ReLU(), 3)):
        with pytest.raises(ArgumentError, match=r"Tracer\.dynamic_block"):
            with Tracer.dynamic_block(module, name):  # type: ignore[arg-type]
                pass
