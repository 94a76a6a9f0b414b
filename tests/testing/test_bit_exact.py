"""assert_bit_exact: against tensors, hashes, the reference kernels, another module."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from qtune.errors import ArgumentError
from qtune.testing import Stages, assert_bit_exact, output_hash
from qtune.testing.bit_exact import _differ

from . import nets

X = nets.batches()[0]


def test_fast_kernels_equal_the_reference(stages: Stages) -> None:
    result = assert_bit_exact(stages.quantized_bc, inputs=X, against="reference")
    assert result.metrics == {"differing_elements": 0}
    assert [layer.name for layer in result.layers][:2] == ["_input_0_quant", "_generated_relu_0"]


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_any_batch_size(stages: Stages, rows: int) -> None:
    x = torch.cat(nets.batches())[:rows]
    assert_bit_exact(stages.quantized_bc, inputs=x, against="reference")


def test_equal_tensor_array_sequence_or_dict(stages: Stages) -> None:
    expected = stages.quantized_bc[0](X)
    for against in (expected, expected.numpy(), [expected], {"": expected}):
        assert_bit_exact(stages.quantized_bc, inputs=X, against=against)


def test_first_differing_element_is_named(stages: Stages) -> None:
    wrong = stages.quantized_bc[0](X).clone()
    wrong[2, 3] += 1
    with pytest.raises(AssertionError) as caught:
        assert_bit_exact(stages.quantized_bc, inputs=X, against=wrong)
    lines = str(caught.value).splitlines()
    assert lines[0] == "bit_exact: output: got 1 of 20 elements differ, limit 0"
    assert any("first difference at (2, 3): " in line for line in lines)


def test_hash_pins_the_outputs(stages: Stages) -> None:
    digest = output_hash(stages.quantized_bc, X)
    assert_bit_exact(stages.quantized_bc, inputs=X, against=digest)
    with pytest.raises(AssertionError, match=r"^bit_exact: outputs: got sha256 \w{12}, limit sha"):
        assert_bit_exact(stages.quantized_bc, inputs=X, against="0" * 64)


def test_other_module_names_the_first_operator_that_differs(stages: Stages) -> None:
    broken = nets.damaged(stages.quantized_bc, "_generated_relu_1")
    assert_bit_exact(copy.deepcopy(stages.quantized_bc), inputs=X, against=stages.quantized_bc)
    with pytest.raises(AssertionError) as caught:
        assert_bit_exact(broken, inputs=X, against=stages.quantized_bc)
    message = str(caught.value)
    assert message.startswith("bit_exact: _generated_relu_1: got ")
    assert "first bad layer in order of execution: _generated_relu_1" in message


def test_other_shape_or_dtype_is_a_difference(stages: Stages) -> None:
    expected = stages.quantized_bc[0](X)
    with pytest.raises(AssertionError, match=r"torch.float32 \(4, 5\), expected torch.float64"):
        assert_bit_exact(stages.quantized_bc, inputs=X, against=expected.double())
    with pytest.raises(AssertionError, match=r"expected torch.float32 \(3, 5\)"):
        assert_bit_exact(stages.quantized_bc, inputs=X, against=expected[:3])


def test_bits_count_not_values() -> None:
    zeros = torch.tensor([0.0, float("nan")]), torch.tensor([-0.0, float("nan")])
    assert _differ(*zeros).tolist() == [True, False]


@pytest.mark.parametrize(
    ("against", "text"),
    [
        ("referenz", "'reference', 64 hex digits"),
        (3, "got int"),
        ([1, 2], r"one tensor for each of the outputs \[''\], but got list"),
        ({"y": np.zeros(3)}, r"outputs are \[''\], expected \['y'\]"),
        ({"": "text"}, r"against\[''\] must be a tensor of numbers but got a str"),
        (np.array([None]), r"against\[''\] must be a tensor of numbers but got a ndarray"),
    ],
)
def test_bad_expectations_are_refused(stages: Stages, against: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        assert_bit_exact(stages.quantized_bc, inputs=X, against=against)


def test_only_integer_modules_have_reference_kernels(stages: Stages) -> None:
    with pytest.raises(ArgumentError, match="only integer modules .* of the stage 'qat'; convert"):
        assert_bit_exact(stages.qat_bc, inputs=X, against="reference")


def test_torch_model_is_refused(stages: Stages) -> None:
    with pytest.raises(ArgumentError, match="module must be an HBIR module"):
        assert_bit_exact(stages.calib, inputs=X, against="reference")
