"""Calls of a function: containers, feeds, and one clear error for each misuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.errors import ArgumentError, RunError
from tests.hbir.graphs import relu_module

X = torch.tensor([[-1.0, 0.0, 2.0], [3.0, -4.0, 5.0]])
Y = X.clamp_min(0)


@pytest.mark.parametrize(
    "arguments", [(X,), (X.numpy(),), ({"_input_0": X},), ([X],), ((X,),)], ids=str
)
def test_call_takes_tensors_arrays_and_feeds(arguments):
    assert torch.equal(relu_module()[0](*arguments), Y)


def test_non_contiguous_and_grad_inputs_are_taken():
    wide = torch.stack([X, X], dim=2).requires_grad_()

    result = relu_module()[0](wide[:, :, 0])

    assert torch.equal(result, Y)
    assert not result.requires_grad


@pytest.mark.parametrize("change", ["readonly", "reversed", "fortran", "big-endian"])
def test_arrays_of_any_layout_are_taken(change):
    """Case A19."""
    array = X.numpy().copy()
    if change == "readonly":
        array.flags.writeable = False
    if change == "reversed":
        array = array[::-1]
    if change == "fortran":
        array = np.asfortranarray(array)
    if change == "big-endian":
        array = array.astype(">f4")
    expected = np.maximum(array, 0).astype(np.float32)

    assert np.array_equal(relu_module()[0](array).numpy(), expected)


def test_results_come_in_the_exported_containers():
    results = {"dict": [["a", {"leaf": 0}], ["b", {"const": None}]]}

    result = relu_module(results=results)[0](X)

    assert list(result) == ["a", "b"]
    assert torch.equal(result["a"], Y)
    assert result["b"] is None


def test_feed_answers_in_the_kind_it_was_given():
    function = relu_module().functions[0]

    arrays, tensors = function.feed({"_input_0": X.numpy()}), function.feed({"_input_0": X})

    assert isinstance(arrays["_output_0"], np.ndarray)
    assert torch.equal(tensors["_output_0"], Y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "takes"),
        ((X, X), "takes"),
        ((3,), "expected a tensor but got 3"),
        ((np.float32(3),), "expected a tensor"),
        ((X.double(),), "expected dtype float32, got float64"),
        ((X.int(),), "expected dtype float32, got int32"),
        ((X[:, :2],), r"expected shape \(2, 3\), got \(2, 2\)"),
        (({"wrong": X},), "takes"),
    ],
)
def test_misuse_is_one_run_error_that_names_the_input(arguments, message):
    with pytest.raises(RunError, match=message):
        relu_module()[0](*arguments)


def test_feed_by_wrong_name_says_the_right_one():
    with pytest.raises(RunError, match="_input_0: float32"):
        relu_module()[0].feed({"x": X})


def test_functions_are_found_by_index_and_name():
    module = relu_module()

    assert module["forward"] is module[0] is module.graphs[0]
    with pytest.raises(ArgumentError, match="no function 'other'.*forward"):
        module["other"]
    with pytest.raises(ArgumentError, match="no function 1"):
        module[1]


def test_observer_gets_each_operator_in_order():
    seen = []
    relu_module()[0].run({"_input_0": X}, observe=lambda name, result: seen.append((name, result)))

    assert [name for name, _ in seen] == ["relu1", "relu2"] == relu_module()[0].operator_names()
    assert all(torch.equal(result.values, Y) for _, result in seen)
    assert {result.dtype for _, result in seen} == {"torch.float32"}


def test_unknown_mode_is_refused():
    with pytest.raises(ArgumentError, match="'fast' or 'reference'"):
        relu_module()[0].run({"_input_0": X}, mode="quick")


def test_qat_module_has_no_reference_mode():
    with pytest.raises(ArgumentError, match="convert it first"):
        relu_module()[0].run({"_input_0": X}, mode="reference")


def test_a_module_calls_its_only_function_and_asks_where_it_has_several():
    module = relu_module()
    assert torch.equal(module(X), Y)
    module.functions = (*module.functions, *relu_module().functions)
    with pytest.raises(ArgumentError, match=r"has 2 functions \(.+, .+\); call one of them"):
        module(X)
