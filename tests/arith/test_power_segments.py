"""Tables of power-of-two segments."""

import numpy as np
import pytest

from qtune.arith.power_segments import power_of_two_table
from qtune.arith.table import lookup
from qtune.dtype import qint16

FUNCTIONS = {
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 8.0, 1.0),
    "tanh": (np.tanh, 6.0, 1.0),
    "exp": (np.exp, 10.0, 1.0),
    "reciprocal": (lambda x: 1 / x, 64.0, 1.0),
}


def span(name, half):
    if name == "exp":
        return -32768, 0
    return (512, 32767) if name == "reciprocal" else (-32768, 32767)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_segments_are_powers_of_two_and_the_error_is_stated(name):
    function, half, top = FUNCTIONS[name]
    s_x, s_y = half / 32768, top / 32768
    lo, hi = span(name, half)
    table = power_of_two_table(function, s_x, s_y, lo, hi)
    widths = table.last - table.first
    cells = widths[:-1] / 63
    assert (np.frexp(cells)[0] == 0.5).all()
    assert widths[-1] >= 1
    assert (table.first[0], table.last[-1]) == (lo, hi)
    assert (table.first[1:] == table.last[:-1]).all()
    assert table.segments <= 64
    codes = np.arange(lo, hi + 1)
    real = np.floor(function(codes * s_x) / s_y + 0.5).clip(-32768, 32767)
    assert np.abs(lookup(table, codes) - real).max() == table.error
    assert table.error <= (5 if name == "reciprocal" else 1)  # numerics.md section 3


def test_positions_of_inner_segments_are_exact():
    table = power_of_two_table(np.tanh, 2.0**-12, 2.0**-15, -32768, 32767)
    width = int(table.last[0] - table.first[0])
    steps = np.arange(width + 1) * 63 * 65536 / width
    assert (steps == np.floor(steps)).all() or width // 63 > 65536


def test_short_and_single_ranges():
    for lo, hi in ((5, 5), (-3, 60), (0, 63), (0, 64), (32000, 32767)):
        table = power_of_two_table(np.tanh, 1e-3, 1 / 32768, lo, hi)
        codes = np.arange(lo, hi + 1)
        real = np.floor(np.tanh(codes * float(np.float32(1e-3))) * 32768 + 0.5)
        assert np.abs(lookup(table, codes) - real).max() <= 1


def test_a_straight_line_needs_one_segment():
    table = power_of_two_table(lambda x: x, 2.0**-15, 2.0**-15, -32000, 32000, qint16)
    assert table.segments == 1
    assert table.error == 0
