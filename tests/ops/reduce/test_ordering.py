"""topk, sort, argsort and cumsum: real values, ties, the same bits in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops.kernel import KernelNode
from qtune.ops.registry import kernel
from tests.ops.elementwise.rig import Case, Operand, randn
from tests.ops.movement.pipeline import build

TIES = torch.tensor([[3.0, 1.0, 3.0, -2.0, 3.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
DTYPES = [qint8, qint16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_topk_takes_the_lowest_index_of_a_tie(dtype: QuantDType, largest: bool) -> None:
    attrs = {"k": 4, "dim": -1, "largest": largest}
    line = build("topk", [TIES], attrs, dtype)
    values, indices = line.integer_results([TIES])
    assert indices.tolist() == (
        [[0, 2, 4, 1], [5, 0, 1, 2]] if largest else [[3, 1, 5, 0], [0, 1, 2, 3]]
    )
    expected = np.take_along_axis(TIES.numpy(), indices, -1)
    assert np.abs(values - expected).max() <= line.scale
    for got, right in zip(line.float_results([TIES]), (values, indices), strict=True):
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["topk", "sort"])
def test_values_and_indices_are_the_fake_quant_models(op: str, dtype: QuantDType) -> None:
    x = randn(2, 5, 7)
    for dim in (0, 1, -1):
        order = {"k": 2, "largest": True} if op == "topk" else {"descending": True}
        line = build(op, [x], {"dim": dim, **order}, dtype)
        for got, right in zip(line.integer_results([x]), line.float_results([x]), strict=True):
            np.testing.assert_array_equal(got, right)


def test_topk_of_torch_has_these_values_and_without_ties_these_indices() -> None:
    x = randn(4, 9)
    from qtune.ops.registry import spec

    float_kernel = spec("topk").float_kernel
    assert float_kernel is not None
    got = float_kernel(x, k=3, dim=1, largest=False)
    for mine, torchs in zip(got, torch.topk(x, 3, 1, largest=False), strict=True):
        assert torch.equal(mine, torchs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_argsort_is_stable(dtype: QuantDType) -> None:
    case = Case("argsort", [Operand(TIES, dtype)], {"dim": 1, "descending": True})
    assert case.check() == 0
    assert case.run_integer().tolist() == [[0, 2, 4, 1, 5, 3], [5, 0, 1, 2, 3, 4]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_argmin_takes_the_lowest_index_of_a_tie(dtype: QuantDType) -> None:
    case = Case("argmin", [Operand(TIES, dtype)], {"dim": 0, "keepdim": True})
    assert case.check() == 0
    case = Case("argmin", [Operand(-TIES, dtype)], {"dim": 1, "keepdim": False})
    assert case.run_integer().tolist() == [0, 5]


def test_argmax_over_everything_keeps_its_dimensions() -> None:
    x = randn(2, 3, 4)
    case = Case("argmax", [Operand(x)], {"dim": None, "keepdim": True})
    assert case.check() == 0
    assert case.run_integer().tolist() == [[[int(torch.argmax(case.operands[0].grid))]]]


@pytest.mark.parametrize("op", ["any", "all"])
def test_masks_are_reduced_to_masks(op: str) -> None:
    mask = randn(3, 4, 5) > 0.6
    for attrs in ({"dim": (1,), "keepdim": False}, {"dim": None, "keepdim": True}):
        case = Case(op, [Operand(mask, None)], attrs)
        assert case.check() == 0
        assert case.run_integer().dtype == torch.bool


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, 2])
def test_cumsum_is_requantized_once(dtype: QuantDType, dim: int) -> None:
    case = Case("cumsum", [Operand(randn(40, 3, 50), dtype)], {"dim": dim}, out=dtype)
    # Bars of numerics.md section 3: 1 for a sum of int8, 2 for int16; the steps are floats.
    assert case.check() <= (1 if dtype is qint8 else 2) + 0.01
    assert case.op_types == ["QCumSum"]


def test_the_longest_cumsum_of_extreme_codes_does_not_wrap() -> None:
    found = kernel("qtune", "QCumSum")
    assert found is not None
    assert found.reference is not None
    assert found.fast is not None
    x = np.full((1, 8192), -128)
    m, n = np.array(16384), np.array(27)
    attrs = {"axis": 1, "lo": -128, "hi": 127, "to": 3}
    exact = found.reference(attrs, x, m, n)
    node = KernelNode("QCumSum", attrs, {1: m, 2: n}, ("int8", "int64", "int64"), ("int8",))
    fast = found.fast(node)(torch.zeros(1, 8192, dtype=torch.uint8))
    assert exact[0, -1] == -128  # -128 * 8192 / 2**13
    np.testing.assert_array_equal(exact, fast.numpy().astype(np.int64) - 128)


def test_sum_and_cumsum_take_the_dtype_that_they_have() -> None:
    from qtune.ops.registry import find_function

    x = randn(2, 3)
    for function in (torch.sum, torch.mean, torch.cumsum):
        found = find_function(function) or pytest.fail("no operator")
        assert found[1].bind(x, 1, dtype=torch.float32).tensors[0] is x
        with pytest.raises(NotImplementedError, match="dtype=torch.float64"):
            found[1].bind(x, 1, dtype=torch.float64)
