"""Scales found again from values that lie on a grid."""

from __future__ import annotations

import numpy as np
import pytest

from qtune.onnx_debug.build.constant_grids import grid_of_values

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("top", [127, -128, 90])
def test_scales_per_channel_are_found_from_the_values(top: int) -> None:
    codes = RNG.integers(-90, 91, (4, 5, 3))
    codes[:, 0, 0] = top
    codes[2] = 0  # a channel of zeros lies on any grid
    codes[:, 1, 0] = 1
    scales = RNG.uniform(1e-3, 1e-1, 4).astype(np.float32)
    values = (codes * scales.reshape(4, 1, 1)).astype(np.float32)
    found = grid_of_values(values, axis=0)
    assert found is not None
    assert (found.axis, found.bits) == (0, 8)
    back = np.floor(values / found.along(3) + np.float32(0.5))
    known = back * found.along(3)
    # another scale may hold the same values; what counts is that none of them moves
    np.testing.assert_allclose(known, values, rtol=3e-7, atol=0)
    if abs(top) > 126:
        np.testing.assert_allclose(found.scales[[0, 1, 3]], scales[[0, 1, 3]], rtol=3e-7)


def test_trained_floats_and_a_few_numbers_have_no_grid() -> None:
    assert grid_of_values(RNG.normal(0, 1, (8, 16)).astype(np.float32), axis=0) is None
    assert grid_of_values(np.array([0.5, 1.0, 2.0], np.float32)) is None
    mixed = np.stack([np.arange(16), RNG.normal(0, 1, 16)]).astype(np.float32)
    assert grid_of_values(mixed, axis=0) is None
    assert grid_of_values(mixed[:1], axis=0) is not None
