"""Thresholds by max, percentile and kl, on numbers counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError
from qtune.onnx_debug.build.config_activation import variants
from qtune.onnx_debug.build.methods import Magnitudes, Method

THOUSANDTHS = np.arange(1, 1001, dtype=np.float32) / np.float32(1000)


def seen(*arrays: np.ndarray, bins: int = 1024, most: int = 16384) -> Magnitudes:
    held = Magnitudes(bins, most)
    for array in arrays:
        held.add(array, np.float32(np.abs(array).max()))
    return held


def test_a_percentile_is_the_edge_of_the_bin_that_reaches_it() -> None:
    held = seen(THOUSANDTHS)
    assert held.range(Method("max"), qint8) == np.float32(1)
    # 990 of 1000 numbers are at most 0.990, which lies in bin ceil(0.990 * 1024) = 1014
    assert held.range(Method("percentile", 0.99), qint8) == np.float32(1014 / 1024)
    assert held.range(Method("max", 0.99), qint16) == np.float32(1014 / 1024)


def test_a_larger_item_adds_bins_of_the_same_width() -> None:
    held = seen(THOUSANDTHS, 3 * THOUSANDTHS)
    assert held.counts.sum() == 2000
    assert (held.top, held.width, held.counts.size) == (np.float32(3), np.float32(1 / 1024), 3072)


def test_beyond_the_most_bins_neighbours_are_joined() -> None:
    held = seen(THOUSANDTHS, 3 * THOUSANDTHS, bins=1024, most=2048)
    assert (held.width, held.counts.size, held.counts.sum()) == (np.float32(2 / 1024), 2048, 2000)


def test_zeros_before_the_first_number_are_counted() -> None:
    held = seen(np.zeros(10, np.float32), THOUSANDTHS[:10])
    assert held.counts.sum() == 20
    assert held.counts[0] >= 10
    assert seen(np.zeros(4, np.float32)).range(Method("kl"), qint8) == 0


def test_kl_cuts_a_lonely_outlier_and_int16_keeps_all() -> None:
    rng = np.random.default_rng(0)
    held = seen(np.append(rng.normal(0, 1, 100_000), 40.0).astype(np.float32))
    cut = held.range(Method("kl"), qint8)
    assert 2 < cut < 10  # the bulk ends near 4.5
    assert held.range(Method("kl", bins=1024), qint16) == np.float32(40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_percentile": 0.4}, "max_percentile is a share from 0.5 to 1.0, got 0.4"),
        ({"num_bin": 128}, "num_bin is a whole number from 129"),
        ({"max_num_bin": 257}, "max_num_bin is a whole number from 258"),
        ({"num_bin": 512, "max_num_bin": 300}, "num_bin 512 is above max_num_bin 300"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        variants("kl", options)


def test_mix_takes_the_percentile_with_the_least_squared_error() -> None:
    many = np.arange(1, 100001, dtype=np.float32) / np.float32(100000)
    # a range of 2.5 costs 1e5 (2.5/127.5)^2/12 = 3.2, one of 1 costs 0.5 and (2.5 - 1)^2 = 2.3
    near = seen(np.append(many, np.float32(2.5)))
    width = 2.5 / 1024
    assert near.range(Method("mix"), qint8) == pytest.approx(1, abs=width)  # a bin's edge
    # of 5: 12.8 against 0.5 and (5 - 1)^2 = 16
    far = seen(np.append(many, np.float32(5)))
    assert far.range(Method("mix"), qint8) == np.float32(5)
    # an int16 grid rounds next to nothing
    assert near.range(Method("mix"), qint16) == np.float32(2.5)
