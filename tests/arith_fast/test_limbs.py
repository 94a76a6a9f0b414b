"""Two limbs give what NumPy's unbounded integers give."""

import numpy as np
import pytest
import torch

from qtune.arith.requantize import rescale
from qtune.arith_fast.limbs import fits_limbs, rescale_limbs

SHIFTS = [-70, -3, 0, 1, 2, 15, 23, 24, 25, 26, 31, 46, 47, 62, 63, 64, 78, 79, 90, 200]


@pytest.mark.parametrize("m", [2**14, 2**15 - 1, 2**30, 2**31 - 1, -1302661570, 0])
@pytest.mark.parametrize("n", SHIFTS)
def test_limbs_equal_the_oracle_on_48_bits(m, n):
    acc = np.random.default_rng(0).integers(-(2**47), 2**47, 500)
    acc[:9] = [0, 1, -1, 2**47 - 1, -(2**47), 7860, 2**24 - 1, -(2**24), 2**30]
    exact = np.clip(rescale(acc, m, n), -32768, 32767)
    args = torch.from_numpy(acc), torch.tensor(m), torch.tensor(n)
    assert fits_limbs(*args[:2])
    np.testing.assert_array_equal(rescale_limbs(*args).clamp(-32768, 32767).numpy(), exact)


def test_channels_may_have_multipliers_and_shifts_of_their_own():
    rng = np.random.default_rng(1)
    acc = rng.integers(-(2**47), 2**47, (40, 6))
    m, n = rng.integers(2**30, 2**31, 6), np.array([20, 24, 25, 40, 60, 79])
    exact = np.clip(rescale(acc, m, n), -128, 127)
    got = rescale_limbs(*map(torch.from_numpy, (acc, m, n))).clamp(-128, 127)
    np.testing.assert_array_equal(got.numpy(), exact)


def test_what_does_not_fit_is_said():
    assert not fits_limbs(torch.tensor([2**60]), torch.tensor(3))
    assert not fits_limbs(torch.tensor([5]), torch.tensor(2**40))
    assert fits_limbs(torch.empty(0, dtype=torch.int64), torch.tensor(2**40))
