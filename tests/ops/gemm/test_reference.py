"""The NumPy kernels against loops over Python integers that follow the definition literally."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import floor
from typing import Any

import numpy as np
import pytest

from qtune.ops.gemm import reference
from qtune.ops.gemm.saturation import count_saturation, saturate_accumulator

Array = np.ndarray[Any, Any]


def naive_conv(attrs: dict[str, Any], x: Array, w: Array) -> Array:
    (top, left, bottom, right), group = attrs["pads"], attrs["group"]
    (sh, sw), (dh, dw) = attrs["strides"], attrs["dilations"]
    batch, inputs, height, width = x.shape
    outputs, per_group, kh, kw = w.shape
    oh = (height + top + bottom - dh * (kh - 1) - 1) // sh + 1
    ow = (width + left + right - dw * (kw - 1) - 1) // sw + 1
    y = np.zeros((batch, outputs, oh, ow), dtype=object)
    for n, o, i, j in np.ndindex(batch, outputs, oh, ow):
        first = (o // (outputs // group)) * per_group
        for c, a, b in product(range(per_group), range(kh), range(kw)):
            row, column = i * sh - top + a * dh, j * sw - left + b * dw
            if 0 <= row < height and 0 <= column < width:
                y[n, o, i, j] += int(x[n, first + c, row, column]) * int(w[o, c, a, b])
    return y.astype(np.int64)


def naive_conv_transpose(attrs: dict[str, Any], x: Array, w: Array) -> Array:
    (top, left, bottom, right), group = attrs["pads"], attrs["group"]
    (sh, sw), (dh, dw), (eh, ew) = attrs["strides"], attrs["dilations"], attrs["output_padding"]
    batch, inputs, height, width = x.shape
    _, per_group, kh, kw = w.shape
    oh = (height - 1) * sh + dh * (kh - 1) + 1 + eh - top - bottom
    ow = (width - 1) * sw + dw * (kw - 1) + 1 + ew - left - right
    y = np.zeros((batch, per_group * group, oh, ow), dtype=object)
    for n, c, i, j in np.ndindex(batch, inputs, height, width):
        first = (c // (inputs // group)) * per_group
        for o, a, b in product(range(per_group), range(kh), range(kw)):
            row, column = i * sh - top + a * dh, j * sw - left + b * dw
            if 0 <= row < oh and 0 <= column < ow:
                y[n, first + o, row, column] += int(x[n, c, i, j]) * int(w[c, o, a, b])
    return y.astype(np.int64)


CONVS = [
    {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1},
    {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "group": 2},
    {"strides": (1, 3), "pads": (2, 2, 2, 2), "dilations": (2, 1), "group": 4},
]


@pytest.mark.parametrize("attrs", CONVS)
def test_conv_equals_the_literal_loop(attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-32768, 32768, (2, 4, 5, 6))
    w = rng.integers(-128, 128, (4, 4 // attrs["group"], 3, 2))
    np.testing.assert_array_equal(reference.conv(attrs, x, w), naive_conv(attrs, x, w))


def test_an_empty_batch_gives_an_empty_result() -> None:
    x, w = np.zeros((0, 4, 5, 6), dtype=np.int64), np.zeros((4, 2, 3, 2), dtype=np.int64)
    assert reference.conv(CONVS[1], x, w).shape == (0, 4, 3, 5)
    attrs = {**CONVS[1], "output_padding": (0, 0)}
    assert reference.conv_transpose(attrs, x, w).shape == (0, 4, 8, 7)


@pytest.mark.parametrize("extra", [(0, 0), (1, 0)])
@pytest.mark.parametrize("attrs", CONVS[:2])
def test_conv_transpose_equals_the_literal_loop(
    attrs: dict[str, Any], extra: tuple[int, int]
) -> None:
    rng = np.random.default_rng(1)
    attrs = {**attrs, "output_padding": extra}
    x = rng.integers(-128, 128, (2, 4, 3, 4))
    w = rng.integers(-128, 128, (4, 3, 3, 2))
    expected = naive_conv_transpose(attrs, x, w)
    np.testing.assert_array_equal(reference.conv_transpose(attrs, x, w), expected)


def test_finish_is_one_rounding_half_up_of_the_exact_product() -> None:
    """A22: rounding twice differs in about one of a thousand cases."""
    rng = np.random.default_rng(2)
    acc = rng.integers(-(2**31), 2**31, 500)
    m = rng.integers(2**14, 2**15, 500)
    n = rng.integers(10, 46, 500)
    result = reference.finish({"lo": -(2**31), "hi": 2**31}, acc, m, n)
    exact = [
        floor(Fraction(int(a) * int(f), 1 << int(s)) + Fraction(1, 2))
        for a, f, s in zip(acc, m, n, strict=True)
    ]
    np.testing.assert_array_equal(result, np.clip(exact, -(2**31), 2**31))


def test_ties_of_the_requantize_go_up() -> None:
    """A21: M = 1/2, so that odd sums are ties."""
    acc = np.array([1, 3, 5, -1, -3, -5])
    result = reference.finish({"lo": -128, "hi": 127}, acc, np.array(1 << 14), np.array(15))
    assert result.tolist() == [1, 2, 3, 0, -1, -2]


def test_saturated_elements_are_counted_inside_a_block() -> None:
    acc = np.array([2**31, -(2**31) - 1, 2**31 - 1, 0])
    with count_saturation() as count:
        clamped = saturate_accumulator(acc, 32)
    assert clamped.tolist() == [2**31 - 1, -(2**31), 2**31 - 1, 0]
    assert count.elements == 2


def test_nested_counting_blocks_count_for_themselves() -> None:
    big = np.array([2**40])
    with count_saturation() as outer:
        saturate_accumulator(big, 32)
        with count_saturation() as inner:
            saturate_accumulator(big, 32)
        saturate_accumulator(big, 32)
    assert (outer.elements, inner.elements) == (2, 1)
