"""Example inputs: what stands for which call, and what is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import Tensor, nn

from qtune.capture import Inputs, as_example_list, as_inputs, capture
from qtune.capture.inputs import batch_to_inputs
from qtune.errors import ArgumentError, CaptureError, PrepareError

from .test_recorder import image


class Pairs(NamedTuple):
    a: Tensor
    b: Tensor


def test_tensor_tuple_dict_and_inputs_are_one_call() -> None:
    x, y = image(1, 3), image(2, 3)
    assert as_inputs(x).args == (x,)
    assert as_inputs((x, y)).args == (x, y)
    assert as_inputs({"x": x}).args == ({"x": x},)
    assert as_inputs(Pairs(x, y)).args == (Pairs(x, y),)
    call = Inputs(x, scale=y)
    assert as_inputs(call) is call
    assert call.kwargs == {"scale": y}
    assert repr(call) == "Inputs(Tensor[1, 3], scale=Tensor[2, 3])"


def test_list_is_several_examples() -> None:
    x = image(1, 3)
    assert [call.args for call in as_example_list([x, (x, x)])] == [(x,), (x, x)]
    assert [call.args for call in as_example_list(x)] == [(x,)]
    with pytest.raises(PrepareError, match="a list means several examples"):
        as_inputs([x, x])


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (np.zeros((1, 3)), r"example input 0 is numpy.ndarray .* pass torch.from_numpy\(x\)"),
        ((image(1, 3), np.zeros(2)), "example input 1 is numpy.ndarray"),
        (3, "no tensor among the example inputs .input 0 is int 3"),
        (None, "no example inputs came"),
        ((), "no tensor among the example inputs"),
        ([], "list of example inputs is empty"),
    ],
)
def test_bad_examples_are_refused(example: Any, message: str) -> None:
    with pytest.raises(PrepareError, match=message):
        capture(nn.Linear(3, 3), example)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"torch.nn.Module was expected, got function"):
        capture(lambda x: x, image(1, 3))  # type: ignore[arg-type]


def test_lazy_modules_are_refused() -> None:
    with pytest.raises(CaptureError, match="has no shape yet"):
        capture(nn.Sequential(nn.LazyLinear(3)), image(1, 3))


class TwoArguments(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


def test_labels_of_a_batch_are_left_out_where_forward_takes_one_argument() -> None:
    x, label = image(1, 3), image(2, 3)
    for batch in ((x, label), [x, label], [x], x):
        assert batch_to_inputs(batch, nn.Linear(3, 3)).args == (x,)
    for batch in ((x, label), [x, label]):
        assert batch_to_inputs(batch, TwoArguments()).args == (x, label)
    call = Inputs(x, mask=label)
    assert batch_to_inputs(call, TwoArguments()) is call
    assert batch_to_inputs((x, label), None).args == (x, label)  # nothing is known of forward


def test_a_batch_that_forward_does_not_take_is_named_with_its_index() -> None:
    x = image(1, 3)
    with pytest.raises(
        PrepareError,
        match=r"loader: batch 4: a list: Inputs\(Tensor\[1, 3\], .* came, but forward takes "
        r"\(x, mask\) \(too many positional arguments\); .*"
        r"qtune.Inputs\(x\) for x, label in loader",
    ):
        batch_to_inputs([x, x, x], TwoArguments(), 4, "loader")
    with pytest.raises(PrepareError, match=r"missing a required .*'mask'"):
        batch_to_inputs(x, TwoArguments())


def test_a_dict_of_arguments_by_name_is_answered_with_inputs() -> None:
    batch = {"x": image(1, 3), "mask": image(1, 3)}
    with pytest.raises(PrepareError, match=r"keys 'x', 'mask' .*pass qtune.Inputs\(\*\*batch\)"):
        batch_to_inputs(batch, TwoArguments())
    assert batch_to_inputs(Inputs(**batch), TwoArguments()).kwargs == batch
    assert batch_to_inputs(batch, nn.Identity()).args == (batch,)  # one argument: it may be a dict
