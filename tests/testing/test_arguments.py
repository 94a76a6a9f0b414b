"""What a caller passes: numbers of Python and NumPy are bounds, everything else has one error."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qtune.errors import ArgumentError
from qtune.testing import assert_close, assert_consistency
from qtune.testing.arguments import check_limit, is_number
from qtune.testing.names import patterns_of
from qtune.testing.origin import origin_of


@pytest.mark.parametrize("value", [2, 2.0, np.int8(2), np.float16(2), np.float64(2)])
def test_a_bound_is_a_real_number_of_python_or_numpy(value: Any) -> None:
    assert check_limit("check", "limit", value) == 2.0
    assert type(check_limit("check", "limit", value)) is float


@pytest.mark.parametrize(
    "value", [True, np.bool_(1), "2", None, 2j, Fraction(1, 2), np.array([2.0]), torch.tensor(2.0)]
)
def test_nothing_else_is_one(value: Any) -> None:
    assert not is_number(value)
    with pytest.raises(ArgumentError, match="^check: limit must be a number but got"):
        check_limit("check", "limit", value)


@pytest.mark.parametrize("value", [float("nan"), np.float32("nan")])
def test_nan_is_no_bound(value: float) -> None:
    with pytest.raises(ArgumentError, match="limit must be a number but got .*nan"):
        check_limit("check", "limit", value)


def test_an_integer_beyond_float_has_an_error_of_its_own() -> None:
    with pytest.raises(ArgumentError, match="^check: limit is too large for a float$"):
        check_limit("check", "limit", 10**400)


def test_a_name_is_a_text() -> None:
    assert origin_of(nn.ReLU(), "mine").model == "mine"
    assert origin_of(nn.ReLU(), "").model == "ReLU"
    with pytest.raises(ArgumentError, match="name stands for the model's: it is a text, got"):
        origin_of(nn.ReLU(), 5)
    with pytest.raises(ArgumentError, match="it is a text, got an int"):
        assert_close(1, 1, name=5)


def test_what_only_counts_as_a_bool_is_refused() -> None:
    with pytest.raises(ArgumentError, match="per_layer must be a bool but got 'no'"):
        assert_consistency(nn.ReLU(), nn.ReLU(), inputs=0, min_cosine=1, per_layer="no")
    with pytest.raises(ArgumentError, match="equal_nan must be a bool but got 1"):
        assert_close(1, 1, equal_nan=1)


@pytest.mark.parametrize("names", [torch.tensor(1.0), np.float32(1), 3, [3], None])
def test_names_of_operators_are_texts(names: Any) -> None:
    with pytest.raises(ArgumentError, match="^check: allowed must be names of operators but got"):
        patterns_of("check", "allowed", names)
