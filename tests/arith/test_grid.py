"""Sampling at computed positions: the rule by hand, the fast twins, and the function bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
import pytest
import torch
import torch.nn.functional as F

from qtune.arith.grid import (
    ONE,
    position_factor,
    positions,
    sample_bilinear,
    sample_nearest,
)
from qtune.arith_fast.grid import sample_bilinear_held, sample_nearest_held
from qtune.arith_fast.held import from_held, to_held
from qtune.dtype import qint8
from qtune.hbir.domain import single_node_model

Array = np.ndarray[Any, Any]


def run_body(op: str, arrays: list[Array], attrs: dict[str, Any]) -> Array:
    model = single_node_model(op, arrays, attrs)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)}
    result: Array = session.run(None, feeds)[0]
    return result


def at(*pairs: tuple[float, float]) -> Array:
    """Positions [1, 1, n, 2] in 256ths of pairs (x, y) in elements."""
    return (np.array(pairs) * ONE).astype(np.int64).reshape(1, 1, -1, 2)


def test_four_taps_by_hand() -> None:
    x = np.array([[10, 20], [30, -40]]).reshape(1, 1, 2, 2)
    places = at((0, 0), (1, 1), (0.5, 0), (0.5, 0.5), (0.25, 0.75))
    # The last: 0.75 * 0.25 * 10 + 0.25 * 0.25 * 20 + 0.75 * 0.75 * 30 - 0.25 * 0.75 * 40 = 12.5,
    # which rounds up.
    assert sample_bilinear(x, places).ravel().tolist() == [10, -40, 15, 5, 13]


def test_outside_of_the_map_lies_code_0() -> None:
    x = np.full((1, 1, 2, 3), 100)
    places = at((-1, 0), (-0.5, 0), (2.5, 1), (3, 1), (1, -0.25), (1, 2), (-4000, 4000))
    assert sample_bilinear(x, places).ravel().tolist() == [0, 50, 50, 0, 75, 0, 0]
    assert sample_nearest(x, places).ravel().tolist() == [0, 100, 0, 0, 100, 0, 0]


def test_nearest_rounds_half_up() -> None:
    x = np.arange(6).reshape(1, 1, 1, 6)
    places = at((0.5, 0), (1.5, 0), (2.49609375, 0), (2.5, 0), (4.75, 0))
    assert sample_nearest(x, places).ravel().tolist() == [1, 2, 2, 3, 5]


def test_halves_of_negative_codes_round_up() -> None:
    x = np.array([-1, -2]).reshape(1, 1, 1, 2)
    assert sample_bilinear(x, at((0.5, 0))).item() == -1  # -1.5


@pytest.mark.parametrize("elements", [0.5, 3.3e-5 * 512, 1e-9, 2.0**-60, 1e12])
def test_position_factor_is_exact_to_31_bits_and_bounded(elements: float) -> None:
    m, n = position_factor(elements)
    assert 1 <= n <= 47
    real = min(elements * ONE, 2.0**29)
    # 31 bits of a multiplier whose code has 16: half a step is 2**-31 of it; what is below 2**-17
    # moves no int16 code by half a step.
    assert m / 2**n == pytest.approx(real, rel=2**-30, abs=2**-16)


def test_far_end_of_a_map_is_hit_to_a_256th() -> None:
    m, n = position_factor(512 / 32767.5)
    found = positions(np.array([-32768, 32767]), m, n, 512 * ONE, -(1 << 30), 1 << 30)
    expected = np.floor(np.array([-32768, 32767]) * (512 * ONE / 32767.5) + 512 * ONE + 0.5)
    assert found.tolist() == expected.tolist()


def test_positions_stop_at_their_bounds() -> None:
    found = positions(np.array([[-9, 9], [1, -1]]), 1 << 30, 22, [256, 0], [0, 0], [512, 256])
    assert found.tolist() == [[0, 256], [512, 0]]


def random_case(seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    batch, channels, height, width = (int(v) for v in rng.integers(1, 5, 4))
    x = rng.choice([-128, -127, -1, 0, 1, 127], (batch, channels, height, width))
    reach = ONE * max(height, width)
    places = rng.integers(-2 * ONE, reach + 2 * ONE, (batch, 3, 4, 2))
    places[:, 0, 0] = [-(1 << 30), 1 << 30]
    places[:, 0, 1:3] = np.round(places[:, 0, 1:3] / ONE) * ONE
    return x, places


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("op", "rule", "fast"),
    [
        ("QSampleBilinear", sample_bilinear, sample_bilinear_held),
        ("QSampleNearest", sample_nearest, sample_nearest_held),
    ],
)
def test_fast_twin_and_function_body_give_the_same_bits(
    op: str, rule: Any, fast: Any, seed: int
) -> None:
    x, places = random_case(seed)
    expected = rule(x, places)
    held = fast(to_held(x, qint8), torch.from_numpy(places.astype(np.int32)))
    np.testing.assert_array_equal(from_held(held), expected)
    body = run_body(op, [x.astype(np.int8), places.astype(np.int32)], {"to": 3})
    assert body.dtype == np.int8
    np.testing.assert_array_equal(body, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_body_of_positions_gives_the_same_bits(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    codes = rng.integers(limits.min, limits.max + 1, (2, 3, 4, 2)).astype(dtype)
    codes.flat[:2] = limits.min, limits.max
    for elements in ((1e-4, 0.03), (1e-9, 7.0), (1e12, 0.5)):
        m, n = map(np.array, zip(*map(position_factor, elements), strict=True))
        constants = [np.array(v, np.int64) for v in (m, n, [130, -7], [0, -900], [4000, 4001])]
        expected = positions(codes, *constants)
        found = run_body("QPositions", [codes, *constants], {})
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected)


def test_bilinear_is_within_the_rounding_of_positions_and_one_of_the_result() -> None:
    """Half a step, and half a 256th of an element along each axis on steps of 255 codes."""
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (1, 2, 7, 9))
    real = rng.uniform(0, 6, (1, 20, 20, 2))
    places = np.floor(real * ONE + 0.5).astype(np.int64)
    size = np.array([9, 7])
    grid = torch.from_numpy((2 * real + 1) / size - 1)
    exact = F.grid_sample(torch.from_numpy(x).double(), grid, align_corners=False).numpy()
    assert np.abs(sample_bilinear(x, places) - exact).max() <= 0.5 + 2 * 255 / 512
