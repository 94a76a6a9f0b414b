"""numerics.md sections 2 and 7: the fast GEMMs equal the int64 rule in every bit."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qtune.arith_fast.capability import INT8_SWITCH, int8_exact
from qtune.arith_fast.gemm import conv2d_kernel, conv_transpose2d_kernel, linear_kernel
from qtune.arith_fast.held import from_held, to_held
from qtune.arith_fast.native.engine import SWITCH, available
from qtune.dtype import qint8, qint16, qint32
from qtune.errors import ArgumentError
from tests.arith_fast.oracle import conv_sum, conv_transpose_sum, finish

DTYPES = {8: qint8, 16: qint16}


ENGINES = {
    "compiled": {},
    "compiled without VNNI": {INT8_SWITCH: "off"},
    "onednn": {SWITCH: "off"},
    "float32": {SWITCH: "off", INT8_SWITCH: "off"},
}


def use(patch, name):
    """Compiled kernels, oneDNN's int8 forms, or the float32 fallback."""
    for variable, value in ENGINES[name].items():
        patch.setenv(variable, value)
    if name.startswith("compiled") and not available():
        pytest.skip("llvmlite is not installed")
    if name == "onednn" and not int8_exact():
        pytest.skip("this CPU has no exact int8 kernels")


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    use(monkeypatch, request.param)
    return request.param


def codes_of(rng, dtype, shape, extreme=False):
    if extreme:
        return rng.choice([dtype.qmin, dtype.qmax, 0], size=shape)
    return rng.integers(dtype.qmin, dtype.qmax + 1, size=shape)


def multipliers(rng, channels, center):
    """15-bit multipliers and shifts that bring sums of about ``2**center`` into a few codes."""
    n = rng.integers(center, center + 8, size=channels)
    return rng.integers(1 << 14, 1 << 15, size=channels), n


def conv_case(rng, draw):
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    depth, per_group = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    if draw(st.booleans()):
        depth, per_group = 1, 1  # depthwise
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    size = tuple(draw(st.integers(dilation[i] * (kernel[i] - 1) + 1, 9)) for i in range(2))
    return {
        "x": (draw(st.integers(1, 3)), groups * depth, *size),
        "w": (groups * per_group, depth, *kernel),
        "stride": (draw(st.integers(1, 2)), draw(st.integers(1, 3))),
        "padding": tuple(draw(st.integers(0, 2)) for _ in range(4)),
        "dilation": dilation,
        "groups": groups,
    }


def pick(draw, *bits):
    """A dtype; repeated widths are drawn more often."""
    return DTYPES[draw(st.sampled_from(bits))]


def fused_operand(rng, draw, shape, channels):
    """Sometimes a fused operand: for the oracle, for the kernel, for its call."""
    if not draw(st.booleans()):
        return None, None, []
    dtype = pick(draw, 8, 16)
    m, n = multipliers(rng, channels, 4)
    codes = codes_of(rng, dtype, shape)
    return (codes, m, n), (m, n, dtype), [to_held(codes, dtype)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", ENGINES)
def test_conv_equals_the_rule(name, data):
    """Groups, depthwise, strides, dilation, uneven pads, all dtypes, fused operand, clamps."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    case = conv_case(rng, draw)
    source, weight, out = (pick(draw, 8, 8, 16) for _ in range(3))
    extreme = draw(st.booleans())
    x, w = codes_of(rng, source, case["x"], extreme), codes_of(rng, weight, case["w"], extreme)
    bias = rng.integers(-(1 << 22), 1 << 22, size=len(w))
    m, n = multipliers(rng, len(w), source.bits + weight.bits)
    lo, hi = draw(st.sampled_from([(out.qmin, out.qmax), (0, out.qmax), (-5, 90), (0, 77)]))
    geometry = {k: case[k] for k in ("stride", "padding", "dilation", "groups")}
    acc = conv_sum(x, w, **geometry)
    addend, options, operands = fused_operand(rng, draw, acc.shape, len(w))
    wide = source is qint16 and weight is qint16
    expected = finish(acc, bias, m, n, lo, hi, addend, wide)
    dtypes = {"in_dtype": source, "w_dtype": weight, "out_dtype": out}
    with pytest.MonkeyPatch.context() as patch:
        use(patch, name)
        kernel = conv2d_kernel(w, bias, m, n, **geometry, **dtypes, lo=lo, hi=hi, addend=options)
        found = kernel(to_held(x, source), *operands)
    np.testing.assert_array_equal(from_held(found), expected)
    assert found.is_contiguous(memory_format=torch.channels_last)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_conv_transpose_equals_the_rule(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = draw(st.integers(1, 3))
    depth, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    reach = [dilation[i] * (kernel[i] - 1) for i in range(2)]
    padding = tuple(draw(st.integers(0, reach[i % 2])) for i in range(4))
    extra = tuple(draw(st.integers(0, stride[i] - 1)) for i in range(2))
    source = DTYPES[draw(st.sampled_from([8, 16]))]
    shape = (
        draw(st.integers(1, 2)),
        groups * depth,
        draw(st.integers(3, 5)),
        draw(st.integers(3, 5)),
    )
    x = codes_of(rng, source, shape)
    w = codes_of(rng, qint8, (groups * depth, per_group, *kernel))
    channels = groups * per_group
    bias, (m, n) = rng.integers(-1000, 1000, size=channels), multipliers(rng, channels, 22)
    geometry = {
        "stride": stride,
        "padding": padding,
        "output_padding": extra,
        "dilation": dilation,
        "groups": groups,
    }
    sizes = [
        (shape[2 + i] - 1) * stride[i] + reach[i] + 1 + extra[i] - padding[i] - padding[i + 2]
        for i in range(2)
    ]
    assume(min(sizes) > 0)
    acc = conv_transpose_sum(x, w, **geometry)
    addend, options, operands = fused_operand(rng, draw, acc.shape, channels)
    expected = finish(acc, bias, m, n, -128, 127, addend)
    kernel = conv_transpose2d_kernel(w, bias, m, n, **geometry, in_dtype=source, addend=options)
    found = kernel(to_held(x, source), *operands)
    np.testing.assert_array_equal(from_held(found), expected)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", ENGINES)
def test_linear_equals_the_rule(name, data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 3)) for _ in range(rank - 1)) + (draw(st.integers(1, 40)),)
    source, weight = DTYPES[draw(st.sampled_from([8, 16]))], DTYPES[draw(st.sampled_from([8, 16]))]
    x = codes_of(rng, source, shape)
    w = codes_of(rng, weight, (draw(st.integers(1, 9)), shape[-1]))
    bias = rng.integers(-1000, 1000, size=w.shape[0])
    m, n = multipliers(rng, w.shape[0], source.bits + weight.bits + 2)
    acc = x @ w.T
    addend, options, operands = fused_operand(rng, draw, acc.shape, len(w))
    wide = source is qint16 and weight is qint16
    expected = finish(acc, bias, m, n, -128, 127, addend, wide, axis=-1)
    with pytest.MonkeyPatch.context() as patch:
        use(patch, name)
        kernel = linear_kernel(w, bias, m, n, source, weight, addend=options)
        found = kernel(to_held(x, source), *operands)
    np.testing.assert_array_equal(from_held(found), expected)


def test_int32_output_is_the_accumulator(engine):
    rng = np.random.default_rng(0)
    x, w = codes_of(rng, qint8, (2, 3, 5, 5)), codes_of(rng, qint8, (4, 3, 3, 3))
    bias = np.array([0, 5, -(2**29), 2**29])
    found = conv2d_kernel(w, bias, None, None, out_dtype="int32")(to_held(x, qint8))
    assert found.dtype == torch.int32
    expected = conv_sum(x, w, (1, 1), (0, 0, 0, 0), (1, 1), 1) + bias.reshape(1, -1, 1, 1)
    np.testing.assert_array_equal(from_held(found), expected)


@pytest.mark.parametrize("width", [701, 1101, 5001])
def test_sums_beyond_float32_are_split(engine, width):
    """Section 7: 2**24 is passed from 1033 products of extreme codes on."""
    rng = np.random.default_rng(width)
    x, w = rng.integers(-128, 128, (4, width)), rng.integers(-128, 128, (6, width))
    x[0], w[0] = 127, 127  # odd sums that need all bits
    x[1], w[1] = -128, -128
    x[2], w[2] = rng.integers(90, 128, width), rng.integers(90, 128, width)
    found = linear_kernel(w, 1, None, None, out_dtype=qint32)(to_held(x, qint8))
    np.testing.assert_array_equal(from_held(found), x @ w.T + 1)


@pytest.mark.parametrize("groups", [1, 2])
def test_deep_convolutions_are_split(engine, groups):
    rng = np.random.default_rng(3)
    x = rng.integers(90, 128, (1, 601 * groups, 3, 3))
    w = rng.integers(90, 128, (3 * groups, 601, 3, 3))
    w[1] = rng.integers(-128, 128, w[1].shape)
    pads = (1, 1, 1, 1)
    kernel = conv2d_kernel(w, None, None, None, groups=groups, padding=pads, out_dtype="int32")
    expected = conv_sum(x, w, (1, 1), pads, (1, 1), groups)
    np.testing.assert_array_equal(from_held(kernel(to_held(x, qint8))), expected)


def test_int32_accumulator_saturates_and_counts(engine):
    """Section 2.1."""
    x = np.full((1, 1200), 32767)
    x[0, :600] = 3
    w = np.full((3, 1200), 127)
    w[1] = -128
    w[2, 1:] = 0
    kernel = linear_kernel(w, [0, 0, 7], None, None, qint16, qint8, out_dtype=qint32)
    found = kernel(to_held(x, qint16))
    assert from_held(found).tolist() == [[2**31 - 1, -(2**31), 3 * 127 + 7]]
    assert kernel.saturated == 2
    kernel(to_held(x, qint16))
    assert kernel.saturated == 4


def test_a_fused_operand_saturates_the_accumulator(engine):
    """Section 2.4: accumulator, operand and their sum each stay in int32."""
    x, w = np.full((1, 4), 127), np.full((2, 4), 127)
    bias, m_a, n_a = [2**31 - 1, -(2**31)], [1 << 14, 1 << 14], [-30, -30]
    operand = np.array([[-1, 5]])
    kernel = linear_kernel(w, bias, 1 << 14, 40, addend=(m_a, n_a, qint8))
    found = kernel(to_held(x, qint8), to_held(operand, qint8))
    expected = finish(
        x @ w.T, bias, [1 << 14] * 2, [40] * 2, -128, 127, (operand, m_a, n_a), axis=-1
    )
    np.testing.assert_array_equal(from_held(found), expected)
    assert kernel.saturated > 0


def test_dual_int16_keeps_48_bits(engine):
    """Section 2.1: int16 x int16 never saturates at the march limits."""
    x, w = np.full((2, 4096), -32768), np.full((3, 4096), -32768)
    w[1], w[2] = 32767, np.random.default_rng(0).integers(-32768, 32768, 4096)
    m, n = [1 << 14, 20000, 32767], [42, 42, 40]
    kernel = linear_kernel(w, 0, m, n, qint16, qint16, qint16)
    expected = finish(x @ w.T, [0] * 3, m, n, -32768, 32767, wide=True, axis=-1)
    np.testing.assert_array_equal(from_held(kernel(to_held(x, qint16))), expected)
    assert kernel.saturated == 0


def test_dual_int16_has_no_int32_output():
    with pytest.raises(ArgumentError, match="48-bit accumulator"):
        linear_kernel(np.ones((1, 4)), 0, None, None, qint16, qint16, qint32)


@pytest.mark.parametrize("bits", [15, 31])
@pytest.mark.parametrize("n", [-3, 0, 1, 30, 44, 45, 46, 47, 62, 63, 70])
def test_every_shift_equals_the_rule(engine, bits, n):
    """Both widths of multipliers, on both sides of the limits of float64."""
    rng = np.random.default_rng(n + 100)
    x, w = codes_of(rng, qint8, (4, 300)), codes_of(rng, qint8, (8, 300))
    bias = rng.integers(-(2**30), 2**30, size=8)
    m = rng.integers(1 << (bits - 1), 1 << bits, size=8) * rng.choice([-1, 1], size=8)
    found = linear_kernel(w, bias, m, n)(to_held(x, qint8))
    expected = finish(x @ w.T, bias, m, [n] * 8, -128, 127, axis=-1)
    np.testing.assert_array_equal(from_held(found), expected)


def test_a_tie_is_rounded_upwards_in_every_channel(engine):
    """A21: accumulators on exact halves of the output step."""
    w = np.eye(3, dtype=np.int64)
    x = np.array([[1, 3, 5], [-1, -3, -5]])
    found = linear_kernel(w, 0, 1 << 14, 15)(to_held(x, qint8))
    assert from_held(found).tolist() == [[1, 2, 3], [0, -1, -2]]


def test_pads_hold_the_real_zero(engine):
    x = np.full((1, 1, 1, 1), -128)
    w = np.ones((1, 1, 3, 3), dtype=np.int64)
    found = conv2d_kernel(w, 0, None, None, padding=(1, 1, 1, 1), out_dtype="int32")
    assert from_held(found(to_held(x, qint8))).tolist() == [[[[-128]]]]


def test_memory_format_does_not_matter(engine):
    """A19."""
    rng = np.random.default_rng(5)
    x, w = codes_of(rng, qint8, (2, 8, 6, 6)), codes_of(rng, qint8, (4, 8, 3, 3))
    kernel = conv2d_kernel(w, 0, 20000, 22)
    held = to_held(x, qint8)
    expected = kernel(held)
    for view in (
        held.contiguous(),
        held.flip(0).flip(0),
        held.transpose(2, 3).contiguous().transpose(2, 3),
    ):
        assert torch.equal(kernel(view), expected)


def test_known_code_range_changes_nothing(engine):
    rng = np.random.default_rng(6)
    x, w = rng.integers(0, 128, (2, 900)), codes_of(rng, qint8, (4, 900), extreme=True)
    narrow = linear_kernel(w, 0, 20000, 30, code_range=(0, 127))(to_held(x, qint8))
    assert torch.equal(narrow, linear_kernel(w, 0, 20000, 30)(to_held(x, qint8)))


def test_threads_do_not_matter(engine):
    rng = np.random.default_rng(7)
    x, w = codes_of(rng, qint8, (4, 16, 40, 40)), codes_of(rng, qint8, (24, 16, 3, 3))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            kernel = conv2d_kernel(w, 5, 20000, 24, padding=(1, 1, 1, 1))
            results.append(kernel(to_held(x, qint8)))
    finally:
        torch.set_num_threads(before)
    expected = finish(conv_sum(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1), 5, 20000, 24, -128, 127)
    for result in results:
        np.testing.assert_array_equal(from_held(result), expected)


def test_empty_batches_pass(engine):
    w = np.ones((4, 2, 3, 3), dtype=np.int64)
    held = to_held(np.zeros((0, 2, 5, 6), dtype=np.int64), qint8)
    assert conv2d_kernel(w, 0, 20000, 24)(held).shape == (0, 4, 3, 4)
    rows = to_held(np.zeros((0, 3), dtype=np.int64), qint8)
    assert linear_kernel(np.ones((4, 3)), 0, 20000, 24)(rows).shape == (0, 4)


def test_weights_must_fit_their_dtype():
    with pytest.raises(ArgumentError, match="0 .. 200 do not fit qint8"):
        linear_kernel(np.array([[0, 200]]), 0, 20000, 24)


def test_clamps_must_fit_the_output():
    with pytest.raises(ArgumentError, match="lo=0, hi=300"):
        linear_kernel(np.array([[0, 2]]), 0, 20000, 24, lo=0, hi=300)


def test_a_map_smaller_than_the_window_is_refused():
    held = to_held(np.zeros((1, 1, 2, 5), dtype=np.int64), qint8)
    w = np.ones((1, 1, 3, 3), dtype=np.int64)
    with pytest.raises(ArgumentError, match="output of 0 x 3"):
        conv2d_kernel(w, 0, 20000, 24)(held)
    with pytest.raises(ArgumentError, match="output of 0 x 3"):
        conv_transpose2d_kernel(w, 0, 20000, 24, padding=(2, 2, 2, 2))(held)


@pytest.mark.parametrize(
    ("x", "w", "stride", "padding", "groups"),
    [
        ((3, 1, 11, 12), (6, 1, 2, 4), (1, 2), (2, 0, 2, 0), 1),
        ((2, 12, 17, 1), (9, 4, 2, 1), (2, 2), (2, 3, 2, 3), 3),
        ((1, 8, 14, 2), (8, 8, 2, 2), (2, 3), (4, 4, 4, 4), 1),
        ((2, 1, 15, 5), (3, 1, 5, 5), (1, 2), (1, 0, 1, 0), 1),
        ((2, 2, 16, 2), (6, 1, 5, 4), (1, 3), (1, 1, 1, 1), 2),
        ((1, 2, 19, 7), (66, 1, 1, 7), (2, 1), (0, 3, 0, 3), 2),
        ((2, 3, 9, 9), (120, 1, 3, 3), (1, 1), (1, 1, 1, 1), 3),
    ],
)
def test_conv_is_exact_where_onednn_is_not(x, w, stride, padding, groups):
    """Windows wholly in the pads, one strided result on a row, wide groups of one channel."""
    rng = np.random.default_rng(0)
    codes, weights = codes_of(rng, qint8, x), codes_of(rng, qint8, w)
    kernel = conv2d_kernel(weights, None, 1, 0, stride, padding, groups=groups, out_dtype="int32")
    expected = conv_sum(codes, weights, stride, padding, (1, 1), groups)
    assert np.array_equal(kernel(to_held(codes, qint8)).numpy(), expected)
