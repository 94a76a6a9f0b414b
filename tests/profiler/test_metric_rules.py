"""What metrics do with unusual tensors and functions (numerics.md section 5, case A30)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qtune.errors import ArgumentError
from qtune.profiler.metric import Metric, metric_of_old_name

NAMES = ("ATOL", "L1", "MSE", "COSINE", "SQNR", "RTOL", "KL")
EXACT = ("ATOL", "L1", "MSE", "RTOL")
FLOAT32_MAX = torch.finfo(torch.float32).max


def reference(name: str, a: Tensor, b: Tensor) -> float:
    """The formulas of numerics.md in NumPy, for finite tensors with something in them."""
    x, y = a.double().numpy(), b.double().numpy()
    d = x - y
    if name == "RTOL":
        ratio = np.where(d == 0, 0.0, np.abs(d) / np.where(x == 0, 1.0, np.abs(x)))
        return float(np.where((x == 0) & (d != 0), FLOAT32_MAX, ratio).max())
    if name == "COSINE":
        return float((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))
    if name == "SQNR":
        return 10 * math.log10((x * x).sum() / (d * d).sum())
    if name == "KL":
        axis = 1 if x.ndim > 1 else 0
        p, q = np.exp(x), np.exp(y)
        p, q = p / p.sum(axis, keepdims=True), q / q.sum(axis, keepdims=True)
        return float((p * np.log(p / q)).mean())
    kinds = {"ATOL": np.abs(d).max(), "L1": np.abs(d).mean(), "MSE": (d * d).mean()}
    return float(kinds[name])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_values_are_those_of_float64(name: str, shape: Any, dtype: torch.dtype) -> None:
    a = torch.randn(shape).to(dtype)
    b = (a.float() + 0.1 * torch.randn(shape)).to(dtype)
    value, expected = Metric.get_metric(name)(a, b), reference(name, a, b)
    # float64 on both sides: sums in another order; differences of KL and SQNR cancel some digits
    assert value == pytest.approx(expected, rel=1e-9)
    if name in ("ATOL", "RTOL"):
        assert value == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_in_memory_plays_no_role(name: str) -> None:
    a, b = torch.randn(2, 8, 3, 3), torch.randn(2, 8, 3, 3)
    last = a.contiguous(memory_format=torch.channels_last)
    metric = Metric.get_metric(name)
    assert metric(last, b) == metric(a, b)
    assert metric(b, last) == metric(b, a)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_not_written_to(name: str) -> None:
    for dtype in (torch.float64, torch.float32):
        a, b = torch.randn(4, 5, dtype=dtype, requires_grad=True), torch.randn(4, 5, dtype=dtype)
        before = a.detach().clone(), b.clone()
        assert isinstance(Metric.get_metric(name)(a, b), float)
        assert torch.equal(a.detach(), before[0])
        assert torch.equal(b, before[1])
        assert a.grad is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool])
def test_integers_are_compared_as_numbers(name: str, dtype: torch.dtype) -> None:
    a, b = torch.tensor([[1, 0, 1]]).to(dtype), torch.tensor([[1, 1, 1]]).to(dtype)
    metric = Metric.get_metric(name)
    # equal up to the order of sums
    assert metric(a, b) == pytest.approx(metric(a.double(), b.double()), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_either_tensor_is_nan_or_the_worst(name: str) -> None:
    good, bad = torch.ones(2, 3), torch.tensor([[1.0, math.nan, 1.0], [1.0, 1.0, 1.0]])
    for a, b in ((good, bad), (bad, good), (bad, bad)):
        value = Metric.get_metric(name)(a, b)
        assert value is not None
        assert math.isnan(value)
        assert Metric.get_metric(name).badness(value) == math.inf


@pytest.mark.parametrize("name", EXACT)
def test_an_infinity_on_both_sides_is_no_difference(name: str) -> None:
    a = torch.tensor([math.inf, -math.inf, 4.0])
    b = torch.tensor([math.inf, -math.inf, 3.0])
    assert Metric.get_metric(name)(a, b) == reference(name, a[2:], b[2:]) / (
        1 if name in ("ATOL", "RTOL") else 3
    )


@pytest.mark.parametrize("name", ["ATOL", "L1", "MSE"])
def test_an_infinity_on_one_side_is_an_infinite_difference(name: str) -> None:
    a, b = torch.tensor([1.0, math.inf]), torch.tensor([1.0, -math.inf])
    assert Metric.get_metric(name)(a, b) == math.inf
    assert Metric.get_metric(name)(a, torch.ones(2)) == math.inf


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_finite_float64_of_any_size_gives_no_nan(name: str, size: float) -> None:
    a = torch.tensor([[3.0, -4.0, 0.0]], dtype=torch.float64) * size
    b = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64) * size
    value = Metric.get_metric(name)(a, b)
    assert value is not None
    assert not math.isnan(value)
    if name == "COSINE":
        assert value == pytest.approx(-7 / 25, rel=1e-12)  # scaling costs one rounding
    if name == "SQNR":
        assert value == pytest.approx(10 * math.log10(25 / 64), rel=1e-12)


def test_rtol_of_a_zero_baseline_is_the_largest_float32() -> None:
    assert Metric.RTOL(torch.tensor([0.0, 2.0]), torch.tensor([1e-30, 2.0])) == FLOAT32_MAX
    assert Metric.RTOL(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0])) == 0.5


def test_kl_compares_over_dimension_one_and_masked_logits_add_nothing() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    # the formula in float64, another order of the mean
    assert Metric.KL(a, b) == pytest.approx(reference("KL", a, b), rel=1e-12)
    masked = torch.tensor([[1.0, 2.0, -math.inf]])
    other = torch.tensor([[2.0, 1.0, -math.inf]])
    two = reference("KL", masked[:, :2], other[:, :2]) * 2 / 3
    assert Metric.KL(masked, other) == pytest.approx(two, rel=1e-12)


def test_complex_tensors_are_two_real_ones() -> None:
    a, b = torch.randn(2, 3, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64)
    for name in NAMES:
        metric = Metric.get_metric(name)
        assert metric(a, b) == metric(torch.view_as_real(a), torch.view_as_real(b))


def test_what_is_no_function_is_not_registered() -> None:
    with pytest.raises(ArgumentError, match="'called': expected a function, got 0.5"):
        Metric.register("called", False, "all")(0.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no metric 'called'"):
        Metric.get_metric("called")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (np.float32(0.5), 0.5), (torch.ones(1, 1), 1.0), (np.ones(1), 1.0)],
)
def test_one_number_in_any_form_is_a_value(value: Any, expected: float) -> None:
    Metric.register("formed", False, "pertensor")(lambda a, b: value)
    try:
        assert Metric.formed(torch.ones(2), torch.ones(2)) == expected
    finally:
        Metric.unregister("formed")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (None, "None"),
        ("0.5", "a str"),
        ([0.5], "a list"),
        (torch.zeros(2), r"a Tensor of shape \(2,\) and dtype torch.float32"),
        (torch.zeros(0), r"a Tensor of shape \(0,\)"),
        (torch.tensor(1j), "a Tensor of shape"),
    ],
)
def test_what_is_no_number_is_refused_with_the_metrics_name(value: Any, got: str) -> None:
    Metric.register("formed", False, "all")(lambda a, b: value)
    try:
        with pytest.raises(
            ArgumentError, match=f"metric 'formed': expected one real number but got {got}"
        ):
            Metric.formed({}, {})
    finally:
        Metric.unregister("formed")


def test_an_error_inside_a_metric_comes_through_with_its_name() -> None:
    def broken(a: Any, b: Any) -> float:
        raise KeyError("logits")

    Metric.register("broken", False, "all")(broken)
    try:
        with pytest.raises(KeyError, match="logits") as caught:
            Metric.broken({}, {})
        assert caught.value.__notes__ == ["raised by the metric 'broken'"]
        with pytest.raises(ArgumentError, match="this function is registered as 'broken'"):
            Metric.get_metric(broken)  # type: ignore[arg-type]
    finally:
        Metric.unregister("broken")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("ATOL", False, "all"), "registered already"),
        (("register", False, "all"), "registered already"),
        (("mro", False, "all"), "a text of its own"),
        ((3, False, "all"), "a text of its own, got 3"),
        (("", False, "all"), "a text of its own"),
        (("new", 0, "all"), "expected a bool but got ascending=0"),
        (("new", False, "tensor"), "expected scope in"),
    ],
)
def test_a_wrong_registration_is_refused(arguments: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Metric.register(*arguments)


def test_metrics_are_found_by_string_and_by_object_and_by_older_spellings() -> None:
    assert Metric.get_metric("COSINE") is Metric.get_metric(Metric.COSINE) is Metric.COSINE
    with pytest.raises(ArgumentError, match="no metric 'Cosine'"):
        Metric.get_metric("Cosine")
    for old, name in (("Cosine", "COSINE"), ("Atol", "ATOL"), ("Rtol", "RTOL"), ("L1", "L1")):
        assert metric_of_old_name(old) is Metric.get_metric(name)
    with pytest.raises(ArgumentError, match="no metric 'cosin'"):
        metric_of_old_name("cosin")
    assert [Metric.get_metric(name).ascending for name in NAMES] == [
        name in ("COSINE", "SQNR") for name in NAMES
    ]
    assert {Metric.get_metric(name).scope for name in NAMES} == {"pertensor"}
