"""mean, sum, amax, amin, argmax and what torch.max is made of (numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qtune.arith.requantize import multiplier_shift
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ExportError
from qtune.ops.kernel import KernelNode
from qtune.ops.registry import kernel, spec
from qtune.ops.spec import Bound
from tests.ops.elementwise.rig import Case, Operand, randn

X = randn(2, 5, 7, 6)
CALLS: list[dict[str, Any]] = [
    {"dim": (2, 3), "keepdim": False},
    {"dim": (-1,), "keepdim": True},
    {"dim": (1,), "keepdim": False},
    {"dim": (0, 3), "keepdim": True},
    {"dim": None, "keepdim": True},
]


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize("attrs", CALLS)
@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_sum_of_codes_is_requantized_once(
    op: str, attrs: dict[str, Any], dtype: QuantDType
) -> None:
    case = Case(op, [Operand(X, dtype)], attrs, out=dtype)
    # Bars of numerics.md section 3: 1 for mean, 2 for int16 sum; the steps are floats.
    assert case.check() <= (2 if op == "sum" else 1) + 0.01
    assert case.op_types == ["QReduceSum"]


def test_mean_has_one_multiplier_with_the_count() -> None:
    case = Case("mean", [Operand(X)], {"dim": (2, 3), "keepdim": False})
    node = next(n for n in case.quantized.model.graph if n.op_type == "QReduceSum")
    m, n = (int(v.const_value.numpy()) for v in node.inputs[1:] if v is not None and v.const_value)
    assert (m, n) == multiplier_shift(float(case.operands[0].scale) / (42 * case.scale))


def test_mean_of_a_large_channels_last_map() -> None:
    x = (randn(1, 8, 112, 112) + 3).contiguous(memory_format=torch.channels_last)
    case = Case("mean", [Operand(x)], {"dim": (2, 3), "keepdim": True})
    # Bar 1; torch's own float32 mean of 12544 values is far more exact than a step.
    assert case.check() <= 1.01


def test_extreme_sums_do_not_wrap() -> None:
    ones = torch.full((1, 70000), 1.0)
    for dtype in (qint8, qint16):
        case = Case("sum", [Operand(-ones, dtype)], {"dim": (1,), "keepdim": False}, out=dtype)
        assert case.check() <= 2.01


@pytest.mark.parametrize("op", ["amax", "amin"])
@pytest.mark.parametrize("attrs", CALLS)
@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_extremum_keeps_the_scale(op: str, attrs: dict[str, Any], dtype: QuantDType) -> None:
    assert Case(op, [Operand(X, dtype)], attrs).check() == 0


@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_argmax_takes_the_lowest_index_of_a_tie(dtype: QuantDType) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, -1.0], [2.0, 2.0, 2.0, 2.0]])
    case = Case("argmax", [Operand(x, dtype)], {"dim": 1, "keepdim": False})
    assert case.check() == 0
    assert case.run_integer().tolist() == [1, 0]


def test_argmax_over_everything_is_flat() -> None:
    case = Case("argmax", [Operand(X, None)], {"dim": None, "keepdim": False})
    assert int(case.qat[0].run(case.feed)["y"]) == int(torch.argmax(X))


def test_whole_reduction_has_rank_zero() -> None:
    found = kernel("qtune", "QReduceSum")
    assert found is not None
    assert found.reference is not None
    assert found.fast is not None
    attrs = {"axes": (0, 1), "keepdims": 0, "lo": -128, "hi": 127, "to": 3}
    x = np.arange(-6, 6).reshape(3, 4)
    m, n = np.array(16384), np.array(14)
    exact = found.reference(attrs, x, m, n)
    node = KernelNode("QReduceSum", attrs, {1: m, 2: n}, ("int8", "int64", "int64"), ("int8",))
    fast = found.fast(node)(torch.from_numpy((x + 128).astype(np.uint8)))
    assert exact.shape == tuple(fast.shape) == ()
    assert int(exact) == int(fast) - 128 == -6


def test_a_sum_of_a_mask_counts_in_int64() -> None:
    case = Case("sum", [Operand(X > 0, None)], {"dim": (1,), "keepdim": False})
    assert case.real.dtype == torch.int64
    assert case.check() == 0


def test_extrema_of_masks_are_refused_at_export() -> None:
    case = Case("amax", [Operand(X > 0, None)], {"dim": (1,), "keepdim": False})
    with pytest.raises(ExportError, match="reduction of a bool tensor"):
        _ = case.qat


def test_sum_of_integers_stays_as_it_is() -> None:
    ids = torch.arange(6).view(2, 3)
    assert Case("sum", [Operand(ids, None)], {"dim": (1,), "keepdim": False}).check() == 0


def test_max_is_three_functions() -> None:
    from tests.ops.elementwise.test_products import Recorder

    def parts(*tensors: object, **attrs: object) -> tuple[list[object], object]:
        recorder = Recorder()
        decompose = spec("max").decompose
        assert decompose is not None
        result = decompose(recorder, Bound(tensors, attrs))
        return [name for name, *_ in recorder.calls], result

    assert parts("a", None, dim=None, keepdim=False) == (["amax"], "amax")
    assert parts("a", None, dim=1, keepdim=True) == (["amax", "argmax"], ("amax", "argmax"))
    assert parts("a", "b", dim=None, keepdim=False) == (["maximum"], "maximum")


def test_max_binds_torchs_three_signatures() -> None:
    bind = next(t.bind for t in spec("max").targets)
    assert bind(X, 1).attrs == {"dim": 1, "keepdim": False}
    assert bind(X, dim=1, keepdim=True).attrs == {"dim": 1, "keepdim": True}
    assert bind(X, X).tensors[1] is X
    assert bind(X, other=X).tensors[1] is X
    assert bind(X).tensors[1] is None
