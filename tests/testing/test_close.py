"""assert_close: steps, tolerances, NaN, and what is never cast or broadcast (case A34)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from qtune.errors import ArgumentError
from qtune.nn.quantized.qtensor import QTensor
from qtune.testing import AssertionResult, assert_close

NAN, INF = math.nan, math.inf
A = np.array([1.0, NAN, 3.0])
B = np.array([1.0, 2.0, NAN])


def failure(*args: Any, **kwargs: Any) -> AssertionResult:
    with pytest.raises(AssertionError) as caught:
        assert_close(*args, **kwargs)
    assert str(caught.value).splitlines()[0] == caught.value.qtune_result.headline
    return caught.value.qtune_result


def test_nan_at_the_same_place_passes_when_asked() -> None:
    """A34"""
    result = assert_close(A, A.copy(), equal_nan=True)
    assert result.metrics == {"mismatches": 0, "max_abs": 0.0, "max_rel": 0.0}
    assert_close(torch.tensor(A), A, equal_nan=True, atol=0.1)


def test_nan_fails_by_default_and_says_what_would_allow_it() -> None:
    """A34"""
    result = failure(A, A.copy())
    assert result.headline == "close: [1]: got nan, limit nan"
    assert "equal_nan=True lets NaN equal NaN at the same place" in result.message()
    assert result.metrics["mismatches"] == 1
    assert math.isnan(result.metrics["max_abs"])


@pytest.mark.parametrize("rest", [{}, {"atol": 10.0}, {"max_mismatches": 3}, {"rtol": INF}])
def test_nan_elsewhere_always_fails_with_index_and_both_values(rest: dict[str, Any]) -> None:
    """A34"""
    result = failure(A, B, equal_nan=True, **rest)
    assert result.headline.startswith("close: [1]: got nan, limit 2")
    lines = result.message().splitlines()
    assert "  [1]: got nan, expected 2" in lines
    assert "  [2]: got 3, expected nan" in lines
    assert "equal_nan=True lets" not in result.message()


@pytest.mark.parametrize(
    ("got", "expected", "headline"),
    [
        (np.zeros(3), np.zeros((3, 1)), "got shape (3,), limit shape (3, 1)"),
        (np.zeros(3, np.float32), np.zeros(3), "got float32, limit float64"),
        (torch.zeros(3), torch.zeros(3).double(), "got float32, limit float64"),
        (torch.zeros(3).half(), torch.zeros(3).bfloat16(), "got float16, limit bfloat16"),
        (np.zeros(3, np.float32), np.zeros((1, 3)), "got float32 (3,), limit float64 (1, 3)"),
        (np.zeros(1, np.int8), np.zeros(1, np.uint8), "got int8, limit uint8"),
        (np.zeros(1, bool), np.zeros(1, np.uint8), "got bool, limit uint8"),
        (np.zeros(1, np.complex64), np.zeros(1, np.float32), "got complex64, limit float32"),
        (np.zeros(0), np.zeros((0, 1)), "got shape (0,), limit shape (0, 1)"),
        (np.zeros(()), np.zeros(1), "got shape (), limit shape (1,)"),
        (1.0, np.zeros(1), "got shape (), limit shape (1,)"),
        (1.5, np.array(1), "got float, limit int64"),
        (True, 1, "got bool, limit int"),
    ],
)
def test_nothing_is_cast_or_broadcast(got: Any, expected: Any, headline: str) -> None:
    """A34 reported as such, however many mismatches are allowed"""
    result = failure(got, expected, atol=100.0, max_mismatches=100)
    assert result.headline == f"close: values: {headline}"
    assert math.isnan(result.metrics["max_abs"])


@pytest.mark.parametrize(
    ("got", "expected", "steps"),
    [
        (np.int8(-128), np.int8(127), 255),
        (np.uint8(0), np.uint8(255), 255),
        (np.int16(32767), np.int16(-32768), 65535),
        (np.int64(-(2**63)), np.int64(2**63 - 1), 2**64 - 1),
        (np.uint64(0), np.uint64(2**64 - 1), 2**64 - 1),
        (np.uint64(2**63), np.uint64(2**63 - 1), 1),
        (np.int64(2**62 + 1), np.int64(2**62), 1),
        (np.bool_(True), np.bool_(False), 1),
        (2**64 - 1, np.int64(0), 2**64 - 1),
    ],
)
def test_codes_are_subtracted_without_wrap_around(got: Any, expected: Any, steps: int) -> None:
    for one, other in ((got, expected), (expected, got)):
        assert assert_close(one, other, steps=steps).metrics["max_steps"] == steps
        result = failure(one, other, steps=steps - 1)
        assert f"{steps} step{'s' if steps > 1 else ''} apart" in result.message()
        assert result.metrics == {"mismatches": 1, "max_steps": steps}


def test_every_pair_of_int8_codes_has_its_distance() -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8)
    left, right = torch.meshgrid(codes, codes, indexing="ij")
    for steps in (0, 1, 254, 255):
        wanted = int(((left.int() - right.int()).abs() > steps).sum())
        if wanted:
            assert failure(left, right, steps=steps).metrics["mismatches"] == wanted
        else:
            assert_close(left, right, steps=steps)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"])
def test_distances_are_those_of_python_s_integers(name: str) -> None:
    info = np.iinfo(name)
    ends = [info.min, info.min + 1, -1 if info.min else 1, 0, info.max - 1, info.max]
    left, right = (
        side.astype(name) for side in np.meshgrid(np.array(ends, name), np.array(ends[::-1], name))
    )
    wanted = [abs(int(a) - int(b)) for a, b in zip(left.flat, right.flat, strict=True)]
    for steps in sorted(set(wanted))[:-1]:
        result = failure(left, right, steps=steps)
        assert result.metrics["mismatches"] == sum(distance > steps for distance in wanted)
        assert result.metrics["max_steps"] == max(wanted)


def test_real_values_are_compared_as_codes_of_the_scale() -> None:
    codes = torch.arange(-32768, 32768, dtype=torch.int32)
    scale = 0.0123
    real = codes.float() * scale
    assert assert_close(real, real.clone(), steps=0, scale=scale).metrics["max_steps"] == 0
    moved = (codes + 1).float() * scale
    # exactly one code, although float32 products are 0.004 steps off at the ends of int16
    assert assert_close(moved, real, steps=1, scale=scale).metrics["max_steps"] == 1
    assert failure(moved, real, steps=0, scale=scale).metrics["mismatches"] == 65536


def test_scales_of_channels_lie_along_their_axis() -> None:
    scale = torch.tensor([0.1, 1.0])
    got, expected = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.3, 0.3], [1.0, 1.0]])
    assert_close(got, expected, steps=3, scale=scale, axis=0)
    assert assert_close(got.T, expected.T, steps=3, scale=scale, axis=-1).metrics["max_steps"] == 3
    result = failure(got, expected, steps=1, scale=[0.1, 1.0], axis=0)
    assert result.headline == "close: [0, 0]: got 0, limit 0.3 within 1 step"
    with pytest.raises(ArgumentError, match=r"^assert_close: the shape is \(2, 3\), but scale"):
        assert_close(torch.zeros(2, 3), torch.zeros(2, 3), steps=1, scale=scale, axis=1)


def test_a_qtensor_has_its_own_scale() -> None:
    one = QTensor(torch.tensor([-128, 0, 127], dtype=torch.int8), 0.5, "qint8")
    other = one.with_codes(torch.tensor([127, 0, 126], dtype=torch.int8))
    result = failure(one, other, steps=1)
    assert result.metrics == {"mismatches": 1, "max_steps": 255}
    assert "[0]: got -128, expected 127, 255 steps apart" in result.message()
    assert_close(one, other, steps=255)
    assert assert_close(one, other.dequantize(), steps=255).metrics["max_steps"] == 255
    assert_close(one, one.dequantize())
    assert failure(one, one.int_repr()).headline == "close: values: got qint8, limit int8"
    assert failure(one, one.dequantize().double()).headline == (
        "close: values: got qint8, limit float64"
    )


def test_qtensors_on_other_grids_differ() -> None:
    codes = torch.zeros(2, 3, dtype=torch.int8)
    one = QTensor(codes, 0.5, "qint8")
    assert failure(one, QTensor(codes, 0.25, "qint8"), steps=9).headline == (
        "close: values: got scale 0.5, limit scale 0.25"
    )
    channels = QTensor(codes, torch.tensor([0.5, 0.25]), "qint8", 0)
    assert failure(one, channels).headline == (
        "close: values: got one scale, limit scales along axis 0"
    )
    assert failure(channels, QTensor(codes, torch.tensor([0.5, 0.125]), "qint8", 0)).headline == (
        "close: values: got scale 0.25 of channel 1, limit scale 0.125 of channel 1"
    )
    assert_close(channels, QTensor(codes, torch.tensor([0.5, 0.25]), "qint8", 0), steps=0)
    assert failure(one, QTensor(codes, 0.5, "qint4")).headline == (
        "close: values: got qint8, limit qint4"
    )


def test_tolerances_are_absolute_and_relative() -> None:
    expected = np.array([0.0, 100.0, -100.0])
    got = expected + np.array([0.5, 1.5, -1.5])
    assert_close(got, expected, atol=0.5, rtol=0.01)
    assert_close(got, expected, atol=1.5)
    result = failure(got, expected, rtol=0.015)
    assert result.headline == "close: [0]: got 0.5, limit 0 within rtol 0.015"
    assert result.metrics == {"mismatches": 1, "max_abs": 1.5, "max_rel": INF}
    assert failure(got, expected, atol=0.5).headline == (
        "close: [1]: got 101.5, limit 100 within atol 0.5"
    )


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.complex64])
def test_an_infinity_equals_only_itself(kind: type) -> None:
    infinite = np.array([INF, -INF], kind)
    assert assert_close(infinite, infinite.copy(), atol=0.1, rtol=0.1).metrics["max_abs"] == 0
    assert failure(infinite, -infinite, rtol=1.0).metrics == {
        "mismatches": 2,
        "max_abs": INF,
        "max_rel": INF,
    }
    assert failure(infinite, np.array([1, -INF], kind), atol=INF).metrics["mismatches"] == 1
    assert failure(np.array([1, -INF], kind), infinite, rtol=1.0).metrics["mismatches"] == 1
    assert failure(infinite, -infinite, max_mismatches=1).metrics["mismatches"] == 2
    assert_close(infinite, -infinite, max_mismatches=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_narrow_floats_are_compared_by_value(dtype: torch.dtype) -> None:
    one = torch.tensor([1.0, 2.0]).to(dtype)
    other = torch.tensor([1.0, 2.25]).to(dtype)
    assert_close(one, one.clone())
    assert_close(one, other, atol=0.25)
    assert failure(one, other, atol=0.125).headline == (
        "close: [1]: got 2, limit 2.25 within atol 0.125"
    )


def test_complex_and_bool_and_empty_and_single_elements() -> None:
    z = torch.tensor([1 + 1j, 2 + 0j])
    assert_close(z.conj(), torch.tensor([1 - 1j, 2 + 0j]))
    assert assert_close(z, z + 3 + 4j, atol=5.0).metrics["max_abs"] == 5.0
    assert failure(z, z + 3j).headline == "close: [0]: got 1+1j, limit 1+4j"
    assert failure(complex(NAN, 1), 1j, atol=9.0).metrics["mismatches"] == 1
    assert failure(torch.tensor([True]), torch.tensor([False])).headline == (
        "close: [0]: got True, limit False"
    )
    assert assert_close(torch.zeros(0, 3), torch.zeros(0, 3)).metrics["mismatches"] == 0
    assert failure(np.float32(1), np.float32(2)).headline == "close: value: got 1, limit 2"
    assert_close(torch.tensor(0.5), 0.5)
    assert_close(0.5, torch.tensor(0.5))
    assert_close(np.float64(2), 2)


def test_values_that_print_alike_are_told_apart() -> None:
    assert failure(0.1 + 0.2, 0.3).headline == "close: value: got 0.30000000000000004, limit 0.3"


def test_so_many_elements_may_miss() -> None:
    got, expected = np.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4).copy()
    expected[0, 3], expected[2, 1] = 5, 109
    result = assert_close(got, expected, steps=1, max_mismatches=2)
    assert result.headline == "close: values: got 2 of 12 elements miss, limit 2 within 1 step"
    assert result.metrics == {"mismatches": 2, "max_steps": 100}
    assert failure(got, expected, steps=1, max_mismatches=1).headline == (
        "close: values: got 2 of 12 elements miss, limit 1 within 1 step"
    )


def test_the_message_has_the_worst_five_and_the_first_in_memory_order() -> None:
    expected = torch.zeros(4, 5).T  # not in its memory's order: indices count
    got = expected.clone()
    for index, value in enumerate([3, -9, 1, 7, 5, 2, 8]):
        got[index // 2, index % 4] = value
    lines = failure(got, expected, atol=0.5).message().splitlines()
    assert lines[:3] == [
        "close: [0, 1]: got -9, limit 0 within atol 0.5",
        "model: values",
        "7 of 20 elements miss, 0 may; worst:",
    ]
    assert [line.split(":")[0] for line in lines[3:8]] == [
        "  [0, 1]", "  [3, 2]", "  [1, 3]", "  [2, 0]", "  [0, 0]",
    ]  # fmt: skip
    assert lines[3] == "  [0, 1]: got -9, expected 0, off by 9"
    assert lines[8] == "first in row-major order: [0, 0]: got 3, expected 0, off by 3"


class Pair(NamedTuple):
    left: Any
    right: Any


def test_containers_are_compared_tensor_by_tensor() -> None:
    got = {"boxes": torch.ones(2, 2), "rest": Pair([1, 2.0], np.arange(3))}
    expected = {"rest": Pair([1, 2.0], np.arange(3)), "boxes": torch.ones(2, 2)}
    assert [layer.name for layer in assert_close(got, expected).layers] == [
        "boxes", "rest-left-0", "rest-left-1", "rest-right",
    ]  # fmt: skip
    expected["rest"].right[2] = 9
    expected["boxes"] = torch.tensor([[1.0, 1.0], [1.0, 2.0]])
    result = failure(got, expected, name="outputs")
    assert result.headline == "close: rest-right [2]: got 2, limit 9"
    assert result.model == "outputs"
    assert "worst of 2 bad outputs (largest distance):" in result.message()
    assert "first in row-major order: boxes [1, 1]: got 1, expected 2" in result.message()
    assert_close(got, expected, max_mismatches=2)


def test_another_structure_names_what_is_missing() -> None:
    result = failure({"a": 1, "c": 2}, {"a": 1, "b": 2})
    assert result.headline == "close: values: got 1 missing, 1 more, limit the same structure"
    assert "missing: b\nnot expected: c" in result.message()
    assert math.isnan(result.metrics["mismatches"])
    assert failure([1, 2], [1]).headline.startswith("close: values: got 0 missing, 1 more")
    assert failure([1.0], np.ones(1)).headline.startswith("close: values: got 1 missing, 1 more")


def test_inputs_stay_as_they_are() -> None:
    got = torch.tensor([1.0, 2.0], requires_grad=True)
    expected = np.array([1.0, 2.0], np.float32)
    expected.setflags(write=False)
    assert_close(got, expected)
    assert got.requires_grad
    assert got.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1, 1), {"steps": -1}, "steps must not be negative"),
        ((1, 1), {"atol": NAN}, "atol must be a number but got nan"),
        ((1, 1), {"rtol": "1"}, "rtol must be a number but got '1'"),
        ((1, 1), {"steps": 1, "atol": 1}, "give steps, or atol and rtol, not both"),
        ((1, 1), {"scale": 0.5}, "give steps= too"),
        ((1, 1), {"steps": 1, "scale": 0.5}, "scale belongs to real values"),
        ((1.0, 1.0), {"steps": 1}, "have no codes to count steps in; give scale="),
        ((1j, 1j), {"steps": 1, "scale": 1.0}, "complex values have no codes"),
        ((1.0, 1.0), {"steps": 1, "scale": 0.0}, "scale must be positive"),
        ((1.0, 1.0), {"steps": 1, "scale": [1.0, 2.0]}, "say with axis= which dimension"),
        ((1.0, 1.0), {"steps": 1, "scale": "x"}, "scale must be a number, or one for each"),
        ((1.0, 1.0), {"steps": 1, "axis": 0}, "axis is the dimension that each number of scale"),
        ((1, 1), {"max_mismatches": -1}, "max_mismatches must be a whole number from 0"),
        ((1, 1), {"max_mismatches": 0.5}, "max_mismatches must be a whole number from 0"),
        ((1, 1), {"equal_nan": 1}, "equal_nan must be a bool"),
        (([], []), {}, "actual holds no tensor, array or number"),
        (({"a-0": 1, "a": [2]}, 1), {}, "actual has two tensors that are both called a-0"),
        (("a", "a"), {}, "expected a tensor, an array, a number, or a dict"),
        ((np.array(["a"]), np.array(["a"])), {}, "array of dtype <U1"),
        ((10**30, 10**30), {}, "needs more than 64 bits"),
        ((np.ma.masked_array([1], [True]), 1), {}, "a masked array has no value"),
        ((torch.zeros(1, device="meta"), 1), {}, "on the device meta"),
        ((torch.zeros(2).to_sparse(), 1), {}, "torch.sparse_coo can't be compared by element"),
    ],
)
def test_wrong_arguments_are_named(args: Any, kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        assert_close(*args, **kwargs)
    assert str(caught.value).startswith("assert_close: ")
    assert text in str(caught.value)


def test_what_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ArgumentError, match="assert_close: actual is nested too deep, or holds"):
        assert_close(loop, loop)


def test_tensors_with_mismatches_that_may_be_are_not_bad() -> None:
    got = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    expected = {"a": torch.tensor([1.0, 2.5]), "b": torch.tensor([3.0])}
    result = assert_close(got, expected, max_mismatches=1)
    assert [(layer.ok, layer.value) for layer in result.layers] == [(True, 0.5), (True, 0.0)]


def test_limits_name_only_what_bounds_an_element_alone() -> None:
    assert assert_close(1.0, 1.25, atol=0.5).limits == {"mismatches": 0, "max_abs": 0.5}
    assert assert_close(1.0, 1.25, rtol=0.5).limits == {"mismatches": 0, "max_rel": 0.5}
    assert assert_close(1.0, 1.25, atol=0.5, rtol=0.5).limits == {"mismatches": 0}
    assert assert_close(1.0, 1.25, max_mismatches=1).limits == {"mismatches": 1}


def test_a_relative_limit_is_relative_to_what_is_expected() -> None:
    assert assert_close(100.0, 111.0, rtol=0.1)
    with pytest.raises(AssertionError, match="got 111, limit 100 within rtol 0.1"):
        assert_close(111.0, 100.0, rtol=0.1)
