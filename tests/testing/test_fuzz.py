"""The decorator ``fuzz``, the strategies, and literals of snippets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from qtune.errors import ArgumentError, RegistryError
from qtune.nn import SegmentLUT
from qtune.ops import registry
from qtune.testing import fuzz
from qtune.testing.fuzzing import OperatorCall, compare, full, fuzz_operator
from qtune.testing.fuzzing.literals import literal
from qtune.testing.fuzzing.profile import EXAMPLES, NAME, profile
from qtune.testing.strategies import (
    accumulators,
    attributes,
    codes,
    operators,
    real_values,
    scales,
    tensors,
)

few = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def double(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x.long() * 2, -128, 127)


def yields(x: torch.Tensor) -> Any:
    yield x


@fuzz(against=double, inputs=["qint8"])
def wraps(x: torch.Tensor) -> torch.Tensor:
    return (x.short() * 2).to(torch.int8)


of_another_function = fuzz(against=torch.atan, dtypes=["qint8"], examples=5)(SegmentLUT(torch.tanh))


@pytest.mark.parametrize("test", [wraps, of_another_function], ids=["function", "table"])
def test_failing_example_is_small_and_its_script_runs(
    test: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError) as info:
        test()
    snippet = info.value.qtune_snippet  # type: ignore[attr-defined]
    exec(snippet, {})  # noqa: S102 - our own script
    assert capsys.readouterr().out.strip() == str(info.value).splitlines()[2]
    assert "of 1 elements are off" in str(info.value)


def test_function_within_its_steps_passes() -> None:
    def coarse(x: torch.Tensor) -> torch.Tensor:
        return torch.floor(x / 4 + 0.5) * 4

    whole = [tensors((3,), "qint8")]
    fuzz(against=torch.Tensor.clone, inputs=whole, max_steps=0.5, scale=4.0)(coarse)()
    with pytest.raises(AssertionError, match="0.25 steps off, limit <= 0.2|0.5 steps off"):
        fuzz(against=torch.Tensor.clone, inputs=whole, max_steps=0.2, scale=4.0)(coarse)()


def test_functions_that_return_nothing_do_not_agree() -> None:
    def nothing(x: torch.Tensor) -> None:
        x.zero_()

    with pytest.raises(AssertionError, match="a result is None: return the tensor"):
        fuzz(against=nothing, inputs=["qint8"])(nothing)()


def test_function_that_depends_on_its_past_is_called_not_repeatable() -> None:
    calls: list[int] = []

    def third_time_off(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.long() + (len(calls) % 3 == 0)

    with pytest.raises(AssertionError, match="got not repeatable"):
        fuzz(against=torch.Tensor.long, inputs=["qint8"])(third_time_off)()


def test_script_of_a_test_without_a_name_says_so() -> None:
    with pytest.raises(AssertionError, match="is no name at the top of an imported file"):
        fuzz(against=double, inputs=["qint8"])(lambda x: x + 1)()


def test_table_within_the_documented_bound_passes() -> None:
    fuzz(against=torch.tanh, examples=3)(SegmentLUT(torch.tanh))()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fuzz(against=double)(double), "give inputs="),
        (lambda: fuzz(against=3, inputs=["qint8"]), "against must be callable"),  # type: ignore[arg-type]
        (lambda: fuzz(against=double, inputs=[3])(double)(), "an input is a strategy"),
        (lambda: fuzz(against=double, inputs=["qint8"], max_steps=float("nan")), "max_steps must"),
        (lambda: fuzz(against=double, inputs=["qint8"], max_steps=-1), "max_steps must"),
        (lambda: fuzz(against=double, inputs=["qint8"], scale=0.0), "scale must"),
        (lambda: fuzz(against=double, inputs=["qint8"])(yields), "no generator, no async"),
        (lambda: fuzz(against=double, inputs=["qint8"], march="bayes")(double), "are for tables"),
        (lambda: fuzz(against=double, inputs=["qint8"], dtypes=["qint8"])(double), "for tables"),
        (lambda: fuzz(against=torch.tanh, scale=0.5)(SegmentLUT(torch.tanh)), "scale is for func"),
        (lambda: fuzz(torch.tanh, inputs=[])(SegmentLUT(torch.tanh)), "inputs of 0"),
        (lambda: fuzz(torch.tanh, inputs=["qint8"] * 2)(SegmentLUT(torch.tanh)), "has one input"),
        (lambda: fuzz_operator("segment_lut"), "left out: a call of it is recorded as"),
        (lambda: fuzz_operator("relu", "speed"), "prop must be one of"),
        (lambda: profile(0), "whole number from 1"),
        (lambda: OperatorCall("relu", (torch.ones(1),), scales=(1.0, 1.0)), "2 scales for 1"),
        (lambda: codes((2,), "qint8", "odd").example, "style must be one of"),
    ],
)
def test_wrong_argument_is_one_error(call: Callable[[], Any], message: str) -> None:
    if "style" in message:
        with pytest.raises(ArgumentError, match=message):
            find(codes((2,), "qint8", "odd"), lambda x: True, settings=few)
        return
    with pytest.raises(ArgumentError, match=message):
        call()


def test_unknown_operator_is_named() -> None:
    with pytest.raises(RegistryError, match="no operator 'rleu'"):
        fuzz_operator("rleu")


def test_profile_leaves_the_users_own_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    before = settings.default
    monkeypatch.delenv("CI", raising=False)
    fixed, drawn = profile(), profile(7, tmp_path)
    monkeypatch.setenv("CI", "true")
    in_ci = profile(database=tmp_path)
    assert settings.default is before
    assert settings.get_profile(NAME).deadline is None
    assert (fixed.derandomize, drawn.derandomize, in_ci.derandomize) == (True, False, True)
    assert (fixed.database, in_ci.database) == (None, None)
    assert drawn.database is not None
    assert (fixed.max_examples, drawn.max_examples) == (EXAMPLES, 7)


@few
@given(codes((40,), "qint8", "mixed"))
def test_codes_meet_the_ends_of_the_grid(x: torch.Tensor) -> None:
    assert x.dtype == torch.int8
    assert x.shape == (40,)


def test_values_shrink_to_one_small_number() -> None:
    assert find(codes((3, 4), "qint16"), lambda x: bool((x != 0).any()), settings=few).sum() == 1
    assert find(scales(), lambda s: s != 1.0, settings=few) in (0.5, 2.0)


@pytest.mark.parametrize(
    ("strategy", "meets"),
    [
        (codes((61,)), lambda x: (x == -128).any() and (x == 127).any()),
        (real_values((61,), "qint8", 0.5), lambda x: ((x / 0.5) % 1 == 0.5).any()),
        (accumulators((61,)), lambda x: (x > 2**31 - 1).any() and (x < -(2**31)).any()),
        (  # one multiplier per channel beside exact scales
            operators("conv2d", dtypes=["qint8"]),
            lambda call: call.output_scale is not None and call.scales[1] is None,
        ),
        (attributes("conv2d"), lambda attrs: attrs["groups"] > 1),
    ],
)
def test_what_breaks_kernels_is_drawn_within_few_examples(
    strategy: st.SearchStrategy[Any], meets: Callable[[Any], Any]
) -> None:
    find(strategy, lambda x: bool(meets(x)), settings=few)


@few
@given(operators(["relu", "add", "cat", "gather", "where"]))
def test_drawn_call_runs(call: OperatorCall) -> None:
    assert all(bool(torch.isfinite(y).all()) for y in [call.model()(*call.inputs)])
    assert call.entry is registry.spec(call.op)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([[0.1, -0.0, float("inf")]]),
        torch.zeros(2, 0, 3),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.arange(30, dtype=torch.int16),
        torch.full((3, 20), 2.5),
        full((3, 20), 0.0, {(1, 2): -7.0}, torch.float64),
        np.array([[1, 2]], dtype=np.int8),
        {"a": (1, None, slice(0, 3)), "b": [np.float64(0.5), "text", torch.float32]},
    ],
)
def test_literal_makes_the_same_value_again(value: Any) -> None:
    again = eval(literal(value), {"torch": torch, "full": full, "inf": float("inf")})  # noqa: S307
    if isinstance(value, torch.Tensor | np.ndarray):
        assert again.dtype == value.dtype
        assert again.shape == value.shape
        assert torch.equal(torch.as_tensor(again), torch.as_tensor(value))
    else:
        assert again == value


def test_comparison_takes_any_form_of_result() -> None:
    assert compare(np.array([1.0, float("nan")]), torch.tensor([1.0, float("nan")])) is None
    assert compare((1, 2), [torch.tensor(1), 3]).output == 1
    assert compare(torch.ones(2), torch.ones(3)).kind == "shape"


@pytest.mark.parametrize("op", ["gt", "le"])
def test_int16_operands_within_a_step_may_compare_either_way(op: str) -> None:
    a = torch.tensor([[2.578125, 1.0, -1.0, 0.5]])
    b = torch.tensor([[2.15625, 1.0, 1.0, 0.625]])
    line = OperatorCall(op, (a, b), dtype="qint16").line()
    got = line.run()
    assert (got[0] != line.fake_quant()[0]).tolist() == [[False, True, False, False]]
    assert torch.equal(line.expected(got)[0], got[0])
    turned = [~got[0]]  # all others count
    assert (line.expected(turned)[0] != turned[0]).tolist() == [[True, False, True, True]]
