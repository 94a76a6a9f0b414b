"""neg, abs, logical operators, multipliers, FloatFunctional."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ArgumentError, ExportError
from qtune.ops.elementwise.float_functional import FloatFunctional
from qtune.ops.elementwise.scaling import CommonShift, fixed_point, shared, single
from qtune.ops.kernel import QValue
from tests.ops.gemm.eager import EagerContext

from .rig import Case, Operand, randn

X = randn(2, 3, 5, 4)
MASK = X > 0


@pytest.mark.parametrize("op", ["neg", "abs"])
@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_sign_keeps_the_scale(op: str, dtype: QuantDType) -> None:
    case = Case(op, [Operand(X, dtype)])
    assert case.check() <= 1  # one step where the code is qmin, else 0
    last = X.contiguous(memory_format=torch.channels_last)
    assert Case(op, [Operand(last, dtype)]).check() <= 1


@pytest.mark.parametrize("dtype", [qint8, qint16])
def test_lowest_code_saturates_to_the_highest(dtype: QuantDType) -> None:
    x = torch.tensor([-2.0, -1.0, 2.0])
    operand = Operand(x, dtype)
    object.__setattr__(operand, "scale", np.float32(2.0 / -dtype.qmin))
    for op in ("neg", "abs"):
        assert float(Case(op, [operand]).run_integer()[0]) == 2.0 * dtype.qmax / -dtype.qmin


def test_logical_operators_run_on_masks() -> None:
    for op in ("logical_and", "logical_or"):
        assert Case(op, [Operand(MASK, None), Operand(MASK[:, :1], None)]).check() == 0
    assert Case("logical_not", [Operand(MASK, None)]).check() == 0


def test_logical_operator_on_integers_is_refused_at_export() -> None:
    ids = torch.tensor([1, 2])
    with pytest.raises(ExportError, match="bool masks, got int64"):
        _ = Case("logical_and", [Operand(ids, None), Operand(ids, None)]).qat


def test_multiplier_far_outside_the_shift_becomes_zero_or_saturates() -> None:
    assert single(EagerContext(), 2.0**-40) == CommonShift((0,), 0)
    assert single(EagerContext(), 0.0) == CommonShift((0,), 0)
    wide = single(EagerContext(), 2.0**20)
    assert (wide.n, wide.m[0]) == (0, 1 << 20)
    assert single(EagerContext(), 0.1 / 0.20284509658813477) == CommonShift((32308,), 16)


def test_number_in_steps_of_the_output_rounds_half_up() -> None:
    """A21."""
    assert [fixed_point(v) for v in (0.5, 1.5, 2.5, -0.5, -1.5, -2.5)] == [1, 2, 3, 0, -1, -2]
    assert fixed_point(float("inf")) == 1 << 61
    assert fixed_point(2.0**53 + 2) == 2**53 + 2


def test_every_lost_operand_is_named() -> None:
    ctx = EagerContext()
    shared(ctx, [(1.0, qint8), (1e-9, qint8), (0.0, qint8)])
    assert [details["operand"] for _, _, details in ctx.reports] == [1]
    shared(ctx, [(2.0**-60, qint8)])
    assert len(ctx.reports) == 2
    zeros, some = (QValue(None, qint8, 1.0, 0, high) for high in (0, 1))
    for codes, count in ((zeros, 2), (some, 3)):
        shared(ctx, [(1.0, qint8), (1e-9, qint8)], [some, codes])
        assert len(ctx.reports) == count


def test_codes_of_eight_bits_beside_sixteen_count_256_times() -> None:
    shift = shared(EagerContext(), [(256.0, qint8), (0.75, qint16)])
    assert shift == CommonShift((16384 << 8, 12288), 14)
    assert shared(EagerContext(), [(1.0, qint8), (0.5, qint8)]) == CommonShift((16384, 8192), 14)


def test_float_functional_runs_plain_operators() -> None:
    f = FloatFunctional()
    y = randn(2, 3, 5, 4, seed=1)
    assert torch.equal(f.add(X, y), X + y)
    assert torch.equal(f.sub(X, y), X - y)
    assert torch.equal(f.mul(X, y), X * y)
    assert torch.equal(f.cat([X, y], dim=1), torch.cat([X, y], 1))
    assert torch.equal(f.matmul(X, y.mT), X @ y.mT)
    assert torch.equal(f.add_scalar(X, 2), X + 2)
    assert torch.equal(f.mul_scalar(X, 2), X * 2)
    assert torch.equal(f.add_relu(X, y), torch.relu(X + y))
    assert list(f.parameters()) == []
    with pytest.raises(ArgumentError, match="through its methods"):
        f(X, X)
