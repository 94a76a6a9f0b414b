"""prelu: the slope is quantized per channel, both branches share a shift."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops.activation.prelu import multipliers
from tests.ops.elementwise.rig import Case, Operand, randn
from tests.ops.gemm.eager import EagerContext

SLOPES = torch.tensor([0.25, -0.5, 1e-4, 2.0])


@pytest.mark.parametrize("dtype", [qint8, qint16])
@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (2, 4, 7), (3, 4)])
@pytest.mark.parametrize("weight", [SLOPES, SLOPES[:1]])
def test_prelu_is_within_one_step(
    dtype: QuantDType, shape: tuple[int, ...], weight: torch.Tensor
) -> None:
    operands = [Operand(randn(*shape), dtype), Operand(weight, qint8, constant=True, axis=0)]
    case = Case("prelu", operands, out=dtype)
    assert case.check() <= 1.01  # one step; the distance is measured in floats
    assert case.op_types == ["QPRelu"]


def test_channels_last_input() -> None:
    x = randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    operands = [Operand(x), Operand(SLOPES, qint8, constant=True, axis=0)]
    assert Case("prelu", operands).check() <= 1.01


def test_slope_keeps_15_bits() -> None:
    """From the larger multiplier, a slope of 0.25 would have 6 bits: 128 steps of int16."""
    m_positive, m_negative, n = multipliers(EagerContext(), 1.0, np.float32([0.25 / 127.5]))
    assert m_negative[0] >= 1 << 14
    assert m_positive[0] == 1 << n[0]


def test_extreme_multipliers_stay_in_64_bits() -> None:
    for factor in (2.0**-60, 2.0**-20, 2.0**20, 2.0**60):
        for slope in (2.0**-40, 1.0, 2.0**20):
            m_positive, m_negative, n = multipliers(EagerContext(), factor, np.float32([slope]))
            assert 0 <= n[0] <= 46
            # |x| <= 2**15 and |slope| <= 2**7: the products must stay below 2**62.
            assert m_positive[0] <= 1 << 47
            assert m_negative[0] <= 1 << 40


def test_zero_slopes_give_zero() -> None:
    weight = torch.zeros(4)
    operands = [Operand(randn(2, 4, 5)), Operand(weight, qint8, constant=True, axis=0)]
    case = Case("prelu", operands)
    assert case.check() <= 1.01
    assert float(case.run_integer().min()) == 0
