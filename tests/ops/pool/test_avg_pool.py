"""Average pools: one multiplier per count, exact sums, own scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith_fast.held import from_held, to_held
from qtune.dtype import QuantDType, qint8, qint16
from qtune.ops.kernel import FloatNode, KernelNode, QValue
from qtune.ops.pool.averaging import _strides
from qtune.ops.pool.windows import adaptive_windows, strided_windows
from qtune.ops.registry import kernel

from ..movement.pipeline import DTYPES, build, check
from ..movement.spelling import operator_of, operator_of_module

X = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (2, 3, 9, 7)).astype(np.float32))
POOL = {
    "kernel_size": (3, 3),
    "stride": (2, 2),
    "padding": (1, 1),
    "ceil_mode": False,
    "count_include_pad": True,
    "divisor_override": None,
}


def node_named(line: Any, op_type: str) -> Any:
    (node,) = [n for n in line.quantized.model.graph if n.op_type == op_type]
    return node


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"count_include_pad": False},
        {"ceil_mode": True},
        {"ceil_mode": True, "count_include_pad": False},
        {"divisor_override": 5},
        {"divisor_override": 5, "ceil_mode": True},
        {"kernel_size": (4, 2), "stride": (3, 1), "padding": (2, 1), "ceil_mode": True},
        {"kernel_size": (9, 7), "stride": (9, 7), "padding": (0, 0)},
    ],
    ids=str,
)
def test_every_geometry_stays_within_a_step(changes: dict[str, Any], dtype: QuantDType) -> None:
    check("avg_pool2d", [X], {**POOL, **changes}, dtype, bar=1.0)


def test_windows_of_different_counts_get_different_multipliers() -> None:
    line = build("avg_pool2d", [X], {**POOL, "count_include_pad": False})
    m = node_named(line, "QAvgPool").inputs[5].const_value.numpy()
    assert m.shape == (5, 4)
    line = build("avg_pool2d", [X], POOL)
    assert node_named(line, "QAvgPool").inputs[5].const_value.numpy().shape == ()


def test_a_constant_map_averages_to_itself_whatever_the_count() -> None:
    """A multiplier of the wrong count shows at the borders of a constant map."""
    ones = torch.full((1, 2, 7, 7), 0.75)
    for changes in ({"count_include_pad": False}, {"ceil_mode": True, "padding": (0, 0)}):
        line = build("avg_pool2d", [ones], {**POOL, **changes}, scale=0.75 / 100)
        steps = np.round(line.integer_results([ones])[0] / np.float32(line.scale))
        assert (steps == 100).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (3, 4), (9, 7), (5, 1), (12, 9), (None, 2)])
def test_adaptive_pools_reach_any_size(size: tuple[Any, Any], dtype: QuantDType) -> None:
    check("adaptive_avg_pool2d", [X], {"output_size": size}, dtype, bar=1.0)


def test_the_mean_of_a_plane_is_one_sum_and_one_rounding() -> None:
    codes = np.random.default_rng(1).integers(-128, 128, (1, 4, 6, 5))
    scale = 1 / 128
    x = torch.from_numpy((codes * scale).astype(np.float32))
    line = build("adaptive_avg_pool2d", [x], {"output_size": (1, 1)}, scales=[scale], scale=scale)
    result = np.round(line.integer_results([x])[0] / scale).astype(int)
    exact = np.floor(codes.sum((2, 3), keepdims=True) / 30 + 0.5)
    # 15 bits of the multiplier move a value of at most 128 by less than 128 * 2**-15 steps.
    assert np.abs(result - exact).max() <= 1
    assert (result == exact).mean() >= 0.75


def test_sums_of_extreme_codes_are_exact() -> None:
    for dtype in (qint8, qint16):
        x = torch.full((1, 1, 40, 33), -1.0)
        scale = -1.0 / dtype.qmin
        line = build("adaptive_avg_pool2d", [x], {"output_size": (1, 1)}, dtype, scales=[scale])
        # one step of the output's grid, the bar of an average pool
        assert line.integer_results([x])[0].item() == pytest.approx(-1.0, abs=line.scale)


class Recorder:
    """A context that keeps the attributes of the last node."""

    level = None
    high_precision_qpp = False

    def constant(self, array: np.ndarray, suffix: str = "") -> np.ndarray:
        return array

    def add(self, op_type: str, inputs: Any, attrs: Any, *, domain: str) -> str:
        self.attrs = attrs
        return op_type


@pytest.mark.parametrize(("code_min", "lo"), [(0, 0), (-5, -128), (None, -128)])
def test_averages_of_codes_above_zero_stay_above_zero(code_min: int | None, lo: int) -> None:
    found = kernel("", "AveragePool")
    assert found is not None
    assert found.convert is not None
    attrs = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0,) * 4}
    x = QValue("x", qint8, 0.5, code_min)
    node = FloatNode("AveragePool", attrs, (x,), "pool", ((1, 1, 4, 4),))
    recorder = Recorder()
    result = found.convert(recorder, node).emit(recorder, 0.5, qint8)  # type: ignore[arg-type]
    assert result.code_min == recorder.attrs["lo"] == lo


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fast_sums_do_not_care_about_strides(dtype: QuantDType) -> None:
    found = kernel("qtune", "QAvgPool")
    assert found is not None
    assert found.reference is not None
    assert found.fast is not None
    codes = np.random.default_rng(2).integers(dtype.qmin, dtype.qmax + 1, (2, 5, 11, 8))
    attrs = {"lo": dtype.qmin, "hi": dtype.qmax, "to": 3 if dtype == qint8 else 5}
    for down, across in ((adaptive_windows(11, 3), adaptive_windows(8, 5)),) + tuple(
        (
            strided_windows(11, k, k, 0, ceil_mode=True, count_pad=True),
            strided_windows(8, k, k, 0, ceil_mode=True, count_pad=True),
        )
        for k in (2, 3, 11)
    ):
        shape = (len(down.start), len(across.start))
        m = np.random.default_rng(3).integers(1 << 14, 1 << 15, shape)
        n = np.random.default_rng(4).integers(14, 60, shape)
        constants = [down.start, down.end, across.start, across.end, m, n]
        names = (f"int{dtype.bits}",)
        node = KernelNode("QAvgPool", attrs, dict(enumerate(constants, 1)), names * 7, names)
        exact = found.reference(attrs, codes, *constants)
        held = to_held(codes, dtype)
        for x in (held, held.contiguous(), held.transpose(2, 3).contiguous().transpose(2, 3)):
            np.testing.assert_array_equal(from_held(found.fast(node)(x)), exact)


@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), [(9, 3, 2, 1), (7, 4, 3, 2)])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_pad", [False, True])
def test_windows_divide_by_what_torch_divides_by(
    size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, count_pad: bool
) -> None:
    windows = strided_windows(
        size, kernel, stride, padding, ceil_mode=ceil_mode, count_pad=count_pad
    )
    x = torch.arange(1.0, size + 1)
    expected = F.avg_pool1d(x[None], kernel, stride, padding, ceil_mode, count_pad)[0]
    sums = [float(x[a:b].sum()) for a, b in zip(windows.start, windows.end, strict=True)]
    # float32 average against exact sums divided in float64
    np.testing.assert_allclose(np.array(sums) / windows.count, expected.numpy(), rtol=1e-6)


def test_adaptive_windows_are_torchs() -> None:
    for size in range(1, 12):
        for out in range(1, 14):
            windows = adaptive_windows(size, out)
            x = torch.arange(1.0, size + 1)
            expected = F.adaptive_avg_pool1d(x[None], out)[0]
            got = [float(x[a:b].mean()) for a, b in zip(windows.start, windows.end, strict=True)]
            # float32 average against exact sums divided in float64
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6)


def test_regular_windows_are_recognized_and_irregular_ones_are_not() -> None:
    windows = strided_windows(9, 3, 2, 1, ceil_mode=False, count_pad=False)
    assert _strides(windows.start, windows.end, 9) == (3, 2, 1, 1)
    windows = adaptive_windows(8, 4)
    assert _strides(windows.start, windows.end, 8) == (2, 2, 0, 0)
    windows = adaptive_windows(7, 3)
    assert _strides(windows.start, windows.end, 7) == (3, 2, 0, 0)
    windows = adaptive_windows(10, 4)
    assert _strides(windows.start, windows.end, 10) is None


def test_spellings() -> None:
    y = X[0]
    assert operator_of(lambda: F.avg_pool2d(X, 2)) == "avg_pool2d"
    assert operator_of(lambda: F.avg_pool2d(X, [2, 3], stride=1, padding=1)) == "avg_pool2d"
    assert operator_of(lambda: F.adaptive_avg_pool2d(X, (None, 1))) == "adaptive_avg_pool2d"
    assert operator_of(lambda: torch.avg_pool1d(y, 2)) == "avg_pool1d"
    assert operator_of(lambda: F.adaptive_avg_pool1d(y, 2)) == "adaptive_avg_pool1d"
    for module, name in (
        (nn.AvgPool2d(3, 2, 1, True, False, 4), "avg_pool2d"),
        (nn.AdaptiveAvgPool2d((2, None)), "adaptive_avg_pool2d"),
    ):
        assert operator_of_module(module, X) == name
    assert operator_of_module(nn.AvgPool1d(2, 1, 1), y) == "avg_pool1d"
    assert operator_of_module(nn.AdaptiveAvgPool1d(3), y) == "adaptive_avg_pool1d"
