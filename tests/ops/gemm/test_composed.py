"""einsum, addmm and their kin: which operators they become, and one set of bits on every path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.dtype import qint8
from qtune.errors import ExportError
from qtune.hbir.export import export
from qtune.march import march
from qtune.ops import registry
from qtune.ops.gemm.einsum import parse
from qtune.quantization import prepare
from tests.ops.whole import Calls, check, leaves, quiet, relative, trains, whole

__all__ = ["quiet"]

G = torch.Generator().manual_seed(11)
BAR = 0.03
"""Both operands and every result on int8 steps, half of 1 / 127.5 of their range each."""


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=G)


def einsum(equation: str) -> nn.Module:
    return Calls(lambda *operands: torch.einsum(equation, *operands))


def parts(net: Any) -> list[str]:
    return [name.partition(".")[2] for name in net.names if name.startswith("_generated")]


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], ["matmul"]),
        ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)],
         ["left_order", "right_order", "matmul"]),
        ("bhwc,cd->bhwd", [(2, 3, 4, 5), (5, 6)], ["matmul"]),
        ("nkctv,kvw->nctw", [(2, 3, 2, 4, 5), (3, 5, 5)],
         ["left_order", "left_flat", "right_flat", "matmul"]),
        ("bij,bij->b", [(2, 3, 4), (2, 3, 4)],
         ["left_flat", "left_side", "right_flat", "right_side", "matmul", "no_columns", "no_rows"]),
        ("ijk->kj", [(2, 3, 4)], ["result_sum", "result_order"]),
        ("ij,ij->ji", [(3, 4), (3, 4)], ["mul", "result_order"]),
        ("bi,bj->bij", [(2, 3), (2, 4)], ["left_one_2", "right_one_1", "mul"]),
    ],
)  # fmt: skip
def test_einsum_is_one_product_after_movement(
    equation: str, shapes: list[tuple[int, ...]], expected: list[str]
) -> None:
    net = check(einsum(equation), *(randn(*shape) for shape in shapes), bar=BAR)
    assert parts(net) == expected


@pytest.mark.parametrize(
    ("equation", "ranks"),
    [
        ("...c,dc->...d", (3, 2)),
        ("b...i,...i->b...", (4, 3)),
        ("bn c , m c -> bmn", (3, 2)),
        ("ab,bc", (2, 2)),
    ],
)
def test_equations_are_read_as_torch_does(equation: str, ranks: tuple[int, ...]) -> None:
    sizes = {label: size for size, label in enumerate("abcdimn12", 2)}
    labels, output = parse(equation, ranks)
    operands = [randn(*(sizes[label[-1]] for label in one)) for one in labels]
    result = torch.einsum(equation, *operands)
    assert tuple(result.shape) == tuple(sizes[label[-1]] for label in output)
    kernel = registry.spec("einsum").float_kernel
    assert kernel is not None
    assert torch.equal(kernel(*operands, equation=equation), result)
    with march("nash-e"), torch.no_grad():
        prepared = prepare(einsum(equation).eval(), tuple(operands))
    assert prepared.float_ops == ()


def test_several_operands_are_joined_from_left_to_right() -> None:
    net = check(einsum("bi,oij,bj->bo"), randn(2, 3), randn(4, 3, 5), randn(2, 5), bar=BAR)
    assert [name for name in parts(net) if name.endswith("matmul")] == ["0_matmul", "1_matmul"]


def test_batches_of_an_einsum_stay_open() -> None:
    net = whole(einsum("bqhd,bkhd->bhqk"), randn(2, 3, 2, 4), randn(2, 5, 2, 4))
    a, b = (torch.cat([x, x[:1]]) for x in net.inputs)
    with torch.no_grad():
        right = net.model(a, b)
        assert relative(net.calib(a, b), right) < BAR
    assert relative(net.quantized[0](a, b), right) < BAR


def test_a_diagonal_stays_float_and_says_why() -> None:
    x = randn(3, 3)
    with march("nash-e"):
        prepared = prepare(einsum("ii->i").eval(), (x,))
    (op,) = prepared.float_ops
    assert "'i' stands twice" in op.reason
    with pytest.raises(ExportError, match="'i' stands twice"):
        export(prepared.eval(), (x,))


def test_a_broadcast_sum_is_refused_by_name() -> None:
    with march("nash-e"), pytest.raises(NotImplementedError, match=r"_generated_einsum_0.*expand"):
        prepare(einsum("ij,jk->ik").eval(), (randn(3, 1), randn(4, 5)))


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda a, b, c: torch.addmm(a, b, c, beta=2, alpha=0.5), [(3, 4), (3, 5), (5, 4)]),
        (lambda a, b, c: a.addmm(b, c, beta=0), [(3, 4), (3, 5), (5, 4)]),
        (torch.addmv, [(6,), (6, 5), (5,)]),
        (torch.baddbmm, [(2, 3, 4), (2, 3, 5), (2, 5, 4)]),
        (torch.addbmm, [(3, 4), (2, 3, 5), (2, 5, 4)]),
        (torch.mv, [(6, 4), (4,)]),
        (torch.inner, [(2, 3, 4), (5, 4)]),
        (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), [(3, 4), (4, 5), (5, 4)]),
        (torch.tensordot, [(2, 3, 4), (3, 4, 5)]),
        (lambda a, b: torch.tensordot(a, b, dims=([0, 2], [-1, 0])), [(2, 3, 4), (4, 5, 2)]),
    ],
)
def test_other_spellings_of_products(call: Any, shapes: list[tuple[int, ...]]) -> None:
    # Some results are small beside their summands, so a step weighs more.
    check(Calls(call), *(randn(*shape) for shape in shapes), bar=2 * BAR)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (torch.outer, [(3,), (4,)]),
        (torch.addr, [(3, 4), (3,), (4,)]),
        (torch.dot, [(7,), (7,)]),
        (torch.vdot, [(7,), (7,)]),
        (lambda a, b: torch.einsum("i,j", a, b), [(3,), (4,)]),
        (lambda a, b: torch.einsum("i,j->ji", a, b), [(3,), (4,)]),
        (lambda a, b: torch.einsum("i,i", a, b), [(7,), (7,)]),
        (lambda a, b: a.unsqueeze(1) * b, [(3,), (4,)]),
        (lambda a, b: a[:, None] + b, [(3,), (4,)]),
        (lambda a, b: (a[:, None] - b).relu().sum(0), [(3,), (4,)]),
    ],
)
def test_products_of_vectors(call: Any, shapes: list[tuple[int, ...]]) -> None:
    # Some results are small beside their summands, so a step weighs more.
    check(Calls(call), *(randn(*shape) for shape in shapes), bar=2 * BAR)


@pytest.mark.parametrize("name", ["addr", "outer", "dot", "vdot"])
def test_float_kernels_of_vector_products_are_torchs(name: str) -> None:
    function = getattr(torch, name)
    operands = [randn(4), randn(4)]
    if name == "addr":
        operands.insert(0, randn(4, 4))
    found = registry.find_function(function)
    assert found is not None
    bound, kernel = found[1].bind(*operands), found[0].float_kernel
    assert kernel is not None
    np.testing.assert_array_equal(
        kernel(*bound.tensors, **bound.attrs).numpy(), function(*operands).numpy()
    )


def test_addmm_with_parameters_is_a_linear_layer() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(randn(4, 5)), nn.Parameter(randn(5))

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.bias, x, self.weight)

    net = check(Conv1D(), randn(3, 4), bar=BAR)
    linear = net.calib.get_submodule("_generated_addmm_0.linear")
    assert linear.weight_fake_quant.scale.shape == (5,)  # per output channel
    assert linear.weight_fake_quant.dtype is qint8
    trains(net.model, [randn(3, 4)])


def test_bilinear_layers() -> None:
    class Bilinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(3, 4, 5)
            self.weight = nn.Parameter(randn(2, 3, 4))

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(a, b), F.bilinear(a, b, self.weight)

    net = check(Bilinear(), randn(6, 3), randn(6, 4), bar=BAR)
    assert set(net.model.state_dict()) <= set(net.calib.state_dict())


def test_vectors_and_broadcast_batches_of_matmul() -> None:
    for shapes in (((4,), (2, 4, 3)), ((2, 3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 2))):
        net = check(Calls(torch.matmul), *(randn(*shape) for shape in shapes), bar=BAR)
        assert leaves(net.fake())[0].shape == net.right()[0].shape
