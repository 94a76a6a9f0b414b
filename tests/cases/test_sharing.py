"""Objects used twice and values with two users: A08, A09, A11."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.profiler import QuantAnalysis
from qtune.quantization import FloatFunctional
from qtune.utils.check_model import check_qat_model

from .steps import (
    INT8,
    STEP,
    calib,
    calibrated,
    distance,
    off,
    prep,
    random_bn,
    run,
    s8,
    scale_of,
    scales,
    stubs,
    to_integer,
)


def functionals() -> list[type[nn.Module]]:
    from torch.ao.nn.quantized import FloatFunctional as TorchFloatFunctional

    return [FloatFunctional, TorchFloatFunctional]


class TwoAdds(nn.Module):
    def __init__(self, functional: type[nn.Module] = FloatFunctional) -> None:
        super().__init__()
        self.add = functional()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.add.add(x, x)
        return a, self.add.add(a * 40, a * 40)


@pytest.mark.parametrize("functional", functionals())
def test_one_add_object_for_two_ranges_covers_both(functional: type[nn.Module]) -> None:
    """A08 shared functional object: the small scale would saturate the second sum by 79."""
    x = torch.linspace(-0.5, 0.5, 201)
    p = calibrated(TwoAdds(functional), x, INT8)
    assert scale_of(p, "add") == s8(80.0)
    report = check_qat_model(p, x)
    assert not report
    assert report.shared == {"add": 2}
    a, b = run(p, x)
    assert distance(a, 2 * x) <= (s8(80.0) / 2 + s8(0.5)) * STEP
    # the second sum starts from the first one's rounded values, times 40, cut at their own range
    assert distance(b, 2 * (40 * a).clamp(-40.0, 40.0)) <= (s8(80.0) / 2 + s8(40.0)) * STEP
    integer_a, integer_b = to_integer(p, x)[0]
    assert distance(integer_a, a) <= s8(80.0) * STEP
    doubled = 2 * (40 * integer_a).clamp(-40.0, 40.0)  # a step of a is 50 steps of b
    assert distance(integer_b, doubled) <= (s8(80.0) + 2 * s8(40.0)) * STEP
    assert float(integer_b.max()) > 79


class TwoRanges(nn.Module):
    """One object for a small and a large value, each quantized on a grid of its own before."""

    def __init__(self, shared: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.shared, self.call = shared, call

    def forward(self, small: Tensor, large: Tensor) -> tuple[Tensor, Tensor]:
        return self.call(self.shared, small), self.call(self.shared, large)


def shared_objects() -> dict[str, tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor], float]]:
    conv, linear = nn.Conv2d(1, 1, 1, bias=False), nn.Linear(4, 4, bias=False)
    conv.weight.data.fill_(2.0)
    linear.weight.data.copy_(2 * torch.eye(4))
    return {
        "add": (FloatFunctional(), lambda m, x: m.add(x, x), 2.0),
        "mul": (FloatFunctional(), lambda m, x: m.mul_scalar(x, 2.0), 2.0),
        "cat": (FloatFunctional(), lambda m, x: m.cat([x, x], 1), 1.0),
        "conv": (conv, lambda m, x: m(x), 2.0),
        "linear": (linear, lambda m, x: m(x), 2.0),
        "clamp": (nn.Hardtanh(-80.0, 80.0), lambda m, x: m(x), 1.0),
    }


@pytest.mark.parametrize("kind", ["add", "mul", "cat", "conv", "linear", "clamp"])
@pytest.mark.parametrize("large_first", [False, True])
def test_any_shared_object_covers_the_union_of_its_calls(kind: str, large_first: bool) -> None:
    """A08 the kind: the last call's range must not win, nor the first's."""
    shared, call, factor = shared_objects()[kind]
    small = torch.linspace(-0.5, 0.5, 16).reshape(1, 1, 4, 4)
    data = (40 * small, small) if large_first else (small, 40 * small)
    model = TwoRanges(shared, call)
    p = calibrated(model, data, INT8)
    assert check_qat_model(p, data).shared == {"shared": 2}
    union = s8(20.0 * factor)
    if ("shared", "output") in stubs(p):
        assert scale_of(p, "shared") == union
    expected, got = run(model, data), run(p, data)
    for y, base in zip(got, expected, strict=True):
        bound = union / 2 + factor * s8(float(base.abs().max()) / factor) / 2
        assert distance(y, base) <= bound * 1.01  # and the weight's own rounding, 1/255
    for y, base in zip(to_integer(p, data)[0], got, strict=True):
        assert distance(y, base) <= union * STEP


class ConvTwice(nn.Module):
    """The batch norm stands behind one of the conv's two calls."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv, self.bn = make(), random_bn(4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.bn(self.conv(x)), self.conv(y)


class BnTwice(nn.Module):
    """One batch norm behind two convs."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.c1, self.c2, self.bn = make(), make(), random_bn(4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.bn(self.c1(x)), self.bn(self.c2(y))


CONVS = {
    "conv": lambda: nn.Conv2d(4, 4, 1),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 3, 2),
}


@pytest.mark.parametrize("make", CONVS)
@pytest.mark.parametrize("cls", [ConvTwice, BnTwice])
def test_reused_conv_or_batch_norm_is_not_folded(cls: type[nn.Module], make: str) -> None:
    """A09 folding anyway gives errors of about 1 on the other path."""
    model = cls(CONVS[make]).eval()
    data = torch.randn(2, 4, 5, 5), torch.randn(2, 4, 5, 5)
    p = prep(model, data)
    off(p)
    for got, expected in zip(run(p, data), run(model, data), strict=True):
        assert distance(got, expected) <= 1e-5  # the limit that the case names
    reused = "conv" if cls is ConvTwice else "bn"
    report = check_qat_model(p, data)
    assert not report
    reasons = [item.reason for item in report.unfused]
    assert any("not fused: reused" in r and reused in r for r in reasons), reasons
    assert "not fused: reused" in str(report)
    calib(p, [data])
    for y, base in zip(to_integer(p, data)[0], run(p, data), strict=True):
        assert distance(y, base) <= 0.03 * float(base.abs().max())  # 4 int8 steps


def test_the_convs_around_a_reused_batch_norm_are_still_quantized() -> None:
    """A09 not fused is not float."""
    data = torch.randn(2, 4, 5, 5), torch.randn(2, 4, 5, 5)
    p = prep(BnTwice(CONVS["conv"]), data)
    assert p.float_ops == ()
    assert {("c1", "weight"), ("c2", "weight"), ("c1", "output"), ("bn", "output")} <= set(stubs(p))


class TwoUsers(nn.Module):
    def __init__(self, layer: nn.Module, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.act = layer, act

    def forward(self, x: Tensor) -> Tensor:
        c = self.conv(x)
        return self.act(c) + c


ACTS = {"relu": F.relu, "relu6": F.relu6, "method": lambda t: t.relu(), "module": nn.ReLU()}
MADE = {
    "conv": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 5, 5)),
    "linear": (lambda: nn.Linear(3, 4), (8, 3)),
    "bn": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), random_bn(4)), (2, 3, 8, 8)),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("layer", MADE)
def test_a_value_with_a_second_user_is_not_fused_with_its_relu(layer: str, act: str) -> None:
    """A11 the pre-relu value is used elsewhere and keeps its negative range."""
    make, shape = MADE[layer]
    model, x = TwoUsers(make(), ACTS[act]).eval(), torch.randn(shape)
    owner = "conv.1" if layer == "bn" else "conv"
    p = prep(model, x)
    off(p)
    assert distance(run(p, x), run(model, x)) <= (1e-5 if layer == "bn" else 0)  # bn is folded
    calib(p, [x])
    with torch.no_grad():
        c = model.conv(x)
    # float32 sums of the folded weight in another order
    assert scale_of(p, owner) == pytest.approx(s8(float(c.abs().max())), rel=1e-5)
    groups = {op.name: node.meta.get("group") for node, op in p.operators()}
    relus = [name for name in groups if "relu" in name or name == "act"]
    assert len(relus) == 1
    assert groups[relus[0]] is None
    (y,) = to_integer(p, x)
    assert distance(y, run(p, x)) <= 0.03 * float(run(p, x).abs().max())  # 4 int8 steps


@pytest.mark.parametrize("layer", MADE)
def test_the_comparison_of_layers_shows_the_value_before_the_relu(
    layer: str, tmp_path: Path
) -> None:
    """A11 in the report."""
    make, shape = MADE[layer]
    model, x = TwoUsers(make(), F.relu).eval(), torch.randn(shape)
    p = calibrated(model, x)
    analysis = QuantAnalysis(model, p, "fake_quant", out_dir=str(tmp_path))
    analysis.set_bad_case(x)
    analysis.run()
    row = analysis.compare_per_layer().to_pandas().loc["conv.1" if layer == "bn" else "conv"]
    assert row["base_model_min"] < 0
    assert row["analy_model_min"] < 0


def test_the_scales_of_a_shared_value_are_those_of_both_users() -> None:
    """A11 relu and the sum read one and the same quantized value."""
    model, x = TwoUsers(nn.Conv2d(3, 4, 3), F.relu), torch.randn(2, 3, 8, 8)
    p = calibrated(model, x)
    assert {name for name, kind in scales(p) if kind == "output"} == {
        "_input_0_quant",
        "conv",
        "_generated_add_0",
    }
