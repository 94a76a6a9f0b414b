"""Compiled GEMMs where vectors, blocks of channels and panels of rows end unevenly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qtune.arith_fast.gemm import conv2d_kernel, conv_transpose2d_kernel, linear_kernel
from qtune.arith_fast.held import to_held
from qtune.arith_fast.native import gemm, products
from qtune.arith_fast.native.engine import MOST_SHAPES, Isa
from qtune.dtype import qint8, qint16
from tests.arith_fast.native.conftest import both, threads

CHANNELS = st.sampled_from([1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 130])
DTYPE = st.sampled_from([qint8, qint8, qint16])


def drawn_constants(rng, channels, bits):
    n = rng.integers(bits + 8, bits + 14, size=channels)
    bias = rng.integers(-(1 << 20), 1 << 20, size=channels)
    return bias, rng.integers(1 << 14, 1 << 15, size=channels), n


def addend_of(rng, draw, channels):
    """Options and held codes of a fused operand, or none."""
    if not draw(st.booleans()):
        return None, None
    dtype = draw(DTYPE)
    m = rng.integers(1 << 14, 1 << 15, size=channels)
    options = (m, rng.integers(2, 9, size=channels), dtype)
    return options, lambda shape: to_held(
        rng.integers(dtype.qmin, dtype.qmax + 1, size=shape), dtype
    )


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_convolutions_of_every_width_are_exact(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    inputs, outputs, source, out = draw(CHANNELS), draw(CHANNELS), draw(DTYPE), draw(DTYPE)
    size = draw(st.sampled_from([1, 2, 3]))
    if draw(st.booleans()):
        weights, groups, outputs = (inputs, 1, size, size), inputs, inputs
    else:
        weights, groups = (outputs, inputs, size, size), 1
    w = rng.integers(-128, 128, size=weights)
    if draw(st.booleans()):
        w = rng.choice([-128, 127], size=weights)
    height, width = (draw(st.integers(size, 13)) for _ in range(2))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    bias, m, n = drawn_constants(rng, outputs, source.bits)
    options, operand = addend_of(rng, draw, outputs)
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    x = rng.integers(source.qmin, source.qmax + 1, (draw(st.integers(1, 3)), inputs, height, width))

    def make():
        return conv2d_kernel(
            w, bias, m, n, stride, padding, groups=groups, in_dtype=source, out_dtype=out,
            lo=draw_lo, addend=options,
        )  # fmt: skip

    draw_lo = draw(st.sampled_from([None, 0, -7]))
    compiled, plain = both(make)
    held = to_held(x, source)
    with threads(draw(st.integers(1, 2))):
        shape = plain(held, *([] if operand is None else [zeros_like_output(plain, held)])).shape
        operands = [] if operand is None else [operand(shape)]
        assert torch.equal(compiled(held, *operands), plain(held, *operands))


def zeros_like_output(kernel, held):
    """Any operand that broadcasts: one code for the whole map."""
    return torch.full((1, 1, 1, 1), 128, dtype=torch.uint8)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "side"), [(1, 64, 70, 40), (5, 8, 20, 9), (3, 512, 64, 7)]
)
def test_many_panels_of_rows_are_exact(count, images, inputs, outputs, side):
    """Images with panels of their own, images that share them, both with a broken last panel."""
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, size=(outputs, inputs, 3, 3))
    bias, m, n = drawn_constants(rng, outputs, 12)
    compiled, plain = both(lambda: conv2d_kernel(w, bias, m, n, padding=(1, 1, 1, 1)))
    held = to_held(rng.integers(-128, 128, size=(images, inputs, side, side)), qint8)
    with threads(count):
        assert torch.equal(compiled(held), plain(held))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_linear_layers_of_every_width_are_exact(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    inputs, outputs, source, out = draw(CHANNELS), draw(CHANNELS), draw(DTYPE), draw(DTYPE)
    w = rng.integers(-128, 128, size=(outputs, inputs))
    bias, m, n = drawn_constants(rng, outputs, source.bits)
    compiled, plain = both(
        lambda: linear_kernel(w, bias, m, n, in_dtype=source, out_dtype=out, lo=-100)
    )
    codes = rng.integers(source.qmin, source.qmax + 1, size=(2, draw(st.integers(1, 300)), inputs))
    held = to_held(codes, source)
    with threads(draw(st.integers(1, 2))):
        assert torch.equal(compiled(held), plain(held))
        strided = torch.stack([held, held], dim=-1)[..., 0]
        assert torch.equal(compiled(strided), plain(held))


def test_transposed_convolutions_are_exact():
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, size=(20, 33, 4, 4))
    compiled, plain = both(lambda: conv_transpose2d_kernel(w, 5, 20000, 24, (2, 2), (1, 1, 1, 1)))
    held = to_held(rng.integers(-128, 128, size=(2, 20, 9, 7)), qint8)
    assert torch.equal(compiled(held), plain(held))


def test_maps_in_any_memory_format_give_the_same():
    rng = np.random.default_rng(0)
    kernel = conv2d_kernel(rng.integers(-128, 128, size=(24, 12, 3, 3)), 0, 20000, 23)
    held = to_held(rng.integers(-128, 128, size=(2, 12, 9, 10)), qint8)
    wide = torch.zeros(2, 24, 9, 20, dtype=torch.uint8)
    wide[:, ::2, :, ::2] = held
    for other in (held.contiguous(), wide[:, ::2, :, ::2]):
        assert torch.equal(kernel(other), kernel(held))


def test_calls_of_many_shapes_stay_exact_and_are_forgotten():
    rng = np.random.default_rng(0)
    w, deep = rng.integers(-128, 128, (5, 8, 3, 3)), rng.integers(-128, 128, (8, 1, 3, 3))
    pairs = [
        both(lambda: conv2d_kernel(w, 0, 20000, 22, padding=(1, 1, 1, 1))),
        both(lambda: conv2d_kernel(deep, 0, 20000, 20, padding=(1, 1, 1, 1), groups=8)),
    ]
    for side in [*range(1, MOST_SHAPES + 4), 1, 2, 3]:
        held = to_held(rng.integers(-128, 128, size=(1, 8, side, 3)), qint8)
        assert all(torch.equal(compiled(held), plain(held)) for compiled, plain in pairs)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("outputs", [1, 8, 9, 64, 65, 100, 1000])
def test_blocks_of_channels_differ_by_one_vector_at_most(lanes, outputs):
    for widest in (2, 4):
        widths = products.block_widths(outputs, lanes, widest)
        assert (sum(widths) - 1) * lanes < outputs <= sum(widths) * lanes
        assert max(widths) <= widest
        assert max(widths) - min(widths) <= 1
        assert sorted(widths, reverse=True) == widths


def test_tiles_fit_the_registers():
    """Sums, one vector of weights for each column of them, and one of the input."""
    for lanes, registers in ((16, 32), (8, 16)):
        for vnni in (True, False):
            flags = Isa(lanes, registers, vnni, True, False)
            for width in range(1, gemm.widest(flags) + 1):
                assert gemm.tile_rows(width, flags) * width + width + 1 <= registers
