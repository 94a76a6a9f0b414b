"""Every fusible pattern of toolchain_facts.md section 7.3, in every spelling."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.modes import qat_mode
from qtune.quantization import FloatFunctional, prepare
from tests.quantization.flow import calib, off, op, run, scales

GEMMS: dict[str, Callable[[], nn.Module]] = {
    "conv2d": lambda: nn.Conv2d(4, 4, 3, padding=1),
    "conv_transpose2d": lambda: nn.ConvTranspose2d(4, 4, 3, padding=1),
    "conv3d": lambda: nn.Conv3d(4, 4, 3, padding=1),
    "linear": lambda: nn.Linear(4, 4),
}
SHAPES = {"conv3d": (2, 4, 3, 3, 3), "linear": (5, 4)}
NORMS: dict[str, Any] = {"conv3d": nn.BatchNorm3d, "linear": nn.BatchNorm1d}
ADDS: dict[str, Callable[..., Tensor]] = {
    "operator": operator.add,
    "torch.add": torch.add,
    "method": lambda a, b: a.add(b),
    "inplace": operator.iadd,
}
RELUS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "nn.ReLU": nn.ReLU,
    "nn.ReLU6": nn.ReLU6,
    "inplace": lambda: nn.ReLU(inplace=True),
    "F.relu": lambda: F.relu,
    "F.relu6": lambda: F.relu6,
    "torch.relu": lambda: torch.relu,
    "method": lambda: lambda x: x.relu(),
}


class Pattern(nn.Module):
    def __init__(
        self, gemm: str, bn: bool, add: Callable[..., Tensor] | None, relu: str | None, first: bool
    ) -> None:
        super().__init__()
        self.gemm, self.add_to, self.first = GEMMS[gemm](), add, first
        self.bn = NORMS.get(gemm, nn.BatchNorm2d)(4) if bn else None
        self.add = FloatFunctional()
        self.act = None if relu is None else RELUS[relu]()
        self.head = GEMMS[gemm]()

    def forward(self, x: Tensor) -> Tensor:
        other = x * 2
        y = self.gemm(x)
        y = y if self.bn is None else self.bn(y)
        if self.add_to is not None:
            y = self.add_to(y, other) if self.first else self.add_to(other, y)
        y = y if self.act is None else self.act(y)
        return self.head(y)


def assert_one_group(model: Pattern, gemm: str) -> None:
    x = torch.randn(SHAPES.get(gemm, (2, 4, 5, 5)))
    p = prepare(model.eval(), x)
    groups = {o.name: n.meta.get("group") for n, o in p.operators()}
    ends = ("_generated_mul_0", "head", "_input_0_quant", "_output_0_dequant", "add.mul")
    inside = [name for name in groups if name not in ends]
    assert len(inside) == 1 + sum(part is not None for part in (model.bn, model.add_to, model.act))
    assert {groups[name] for name in inside} == {inside[-1]}, groups
    assert [name for name in inside if (name, "output") in scales(p)] == inside[-1:]
    assert p.unfused == ()
    off(p)
    # batch norm is folded in float64 and rounded once; float32 sums follow
    assert torch.allclose(run(p, x), run(model, x), rtol=1e-5, atol=1e-5)
    calib(p, [x])
    run(p, x)


@pytest.mark.parametrize("gemm", GEMMS)
@pytest.mark.parametrize("bn", [False, True])
@pytest.mark.parametrize(("add", "relu"), [(0, 1), (1, 0), (1, 1)])
def test_every_combination_is_one_group(gemm: str, bn: bool, add: int, relu: int) -> None:
    adding = operator.add if add else None
    assert_one_group(Pattern(gemm, bn, adding, "nn.ReLU" if relu else None, True), gemm)


@pytest.mark.parametrize("name", ADDS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("mode", ["fuse_bn", "with_bn"])
def test_every_spelling_of_add_joins_with_the_gemm_on_either_side(
    name: str, first: bool, mode: str
) -> None:
    with qat_mode(mode):
        assert_one_group(Pattern("conv2d", True, ADDS[name], None, first), "conv2d")


def test_the_add_of_a_functional_object_joins() -> None:
    model = Pattern("conv2d", True, None, "nn.ReLU", True)
    model.add_to = model.add.add
    assert_one_group(model, "conv2d")


@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize("add", [False, True])
def test_every_spelling_of_relu_joins(relu: str, add: bool) -> None:
    adding = operator.add if add else None
    assert_one_group(Pattern("conv2d", False, adding, relu, True), "conv2d")


def test_synchronized_norms_join_as_others_do() -> None:
    model = Pattern("conv2d", True, None, "nn.ReLU", True)
    model.bn = nn.SyncBatchNorm(4)
    assert_one_group(model, "conv2d")


def test_a_sum_of_two_gemms_belongs_to_the_later_one() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = (nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.a(x) + self.b(x)))

    p = prepare(Both().eval(), torch.randn(1, 4, 5, 5))
    groups = {o.name: n.meta.get("group") for n, o in p.operators()}
    assert groups["b"] == groups["_generated_add_0"] == "_generated_relu_0"
    assert groups["a"] is None
    assert op(p, "a").activation_post_process is not None


@pytest.mark.parametrize("kind", ["broadcast", "scalar"])
def test_an_add_of_another_shape_stays_apart(kind: str) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            y = y + (x.mean((2, 3), keepdim=True) if kind == "broadcast" else 2.0)
            return self.head(y)

    model, x = Other().eval(), torch.randn(1, 4, 5, 5)
    p = prepare(model, x)
    assert op(p, "conv").activation_post_process is not None
    off(p)
    assert torch.equal(run(p, x), run(model, x))
