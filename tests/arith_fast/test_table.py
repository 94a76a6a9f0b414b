"""numerics.md section 3: lookups on held codes equal the NumPy tables."""

import numpy as np
import pytest

from qtune.arith.table import int8_table, lookup, segment_table
from qtune.arith_fast.blocks import BLOCK
from qtune.arith_fast.held import from_held, to_held
from qtune.arith_fast.table import lut8, lut16
from qtune.dtype import qint8, qint16

pytestmark = pytest.mark.usefixtures("each_form")


ALL8, ALL16 = np.arange(-128, 128), np.arange(-32768, 32768)


@pytest.mark.parametrize("out", [qint8, qint16])
def test_int8_lookup_gives_every_entry(out):
    table = int8_table(np.tanh, 0.05, 1 / out.qmax, out)
    np.testing.assert_array_equal(from_held(lut8(table, out)(to_held(ALL8, qint8))), table)


@pytest.mark.parametrize("out", [qint8, qint16])
@pytest.mark.parametrize("span", [(-32768, 32767), (-100, 9000)])
def test_int16_lookup_equals_the_interpolation_at_every_code(out, span):
    table = segment_table(np.tanh, 1e-4, 1 / out.qmax, *span, out=out)
    found = from_held(lut16(table, out)(to_held(ALL16, qint16)))
    np.testing.assert_array_equal(found, lookup(table, ALL16, out))


def test_shapes_and_memory_formats_are_kept():
    """A19."""
    codes = np.random.default_rng(0).integers(-128, 128, size=(2, 5, 3, 4))
    table = int8_table(np.tanh, 0.05, 1 / 127)
    held = to_held(codes, qint8)
    for view in (held, held.contiguous(), held.transpose(1, 3).contiguous().transpose(1, 3)):
        np.testing.assert_array_equal(from_held(lut8(table)(view)), table[codes + 128])


def test_large_maps_run_in_blocks():
    codes = np.random.default_rng(1).integers(-128, 128, size=2 * BLOCK + 17)
    table = int8_table(np.sin, 0.05, 1 / 127)
    np.testing.assert_array_equal(from_held(lut8(table)(to_held(codes, qint8))), table[codes + 128])


def test_nothing_gives_nothing():
    table = int8_table(np.sin, 0.05, 1 / 127)
    assert lut8(table)(to_held(np.zeros((0, 3)), qint8)).shape == (0, 3)
