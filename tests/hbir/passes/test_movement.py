"""insert_transpose and insert_split: the same numbers in another layout."""

from __future__ import annotations

import numpy as np
import pytest

from qtune.errors import ArgumentError
from qtune.hbir.serialize import from_bytes
from tests.hbir.graphs import relu_module
from tests.hbir.passes.models import X, bits, qat_module

FEED = {"image": X.numpy()}


def test_transpose_moves_dimension_i_to_permutes_i():
    module = qat_module()

    (new,) = module[0].inputs[0].insert_transpose([0, 3, 1, 2])

    assert (new.name, new.shape, new.dtype) == ("image", (2, 8, 8, 3), "float32")
    # NumPy's axes are the inverse: new = old.transpose(0, 2, 3, 1)
    moved = np.ascontiguousarray(X.numpy().transpose(0, 2, 3, 1))
    assert moved.shape == new.shape
    expected = bits(qat_module(), FEED)[1]
    converted, got = bits(module, {"image": moved})
    for name, value in expected.items():
        assert np.array_equal(got[name], value)
    assert converted.report == ()
    assert converted[0].operations[0].type == "qtune::Quantize"


def test_permutation_that_is_not_its_own_inverse_goes_the_documented_way():
    module = qat_module()

    (new,) = module[0].inputs[0].insert_transpose([0, 2, 3, 1])

    assert new.shape == (2, 8, 3, 8)  # C goes to 2, H to 3, W to 1
    moved = np.ascontiguousarray(X.numpy().transpose(0, 3, 1, 2))
    got = module[0].feed({"image": moved})
    for name, value in qat_module()[0].feed(FEED).items():
        assert np.array_equal(got[name], value)


@pytest.mark.parametrize("output", [0, 1])
def test_transposed_outputs_hold_the_same_numbers(output):
    module = qat_module()
    old = module[0].outputs[output]
    name, shape = old.name, old.shape

    (new,) = old.insert_transpose([0, 3, 1, 2])

    expected = bits(qat_module(), FEED)[1][name].transpose(0, 2, 3, 1)
    converted, got = bits(module, FEED)
    assert new.shape == expected.shape == tuple(np.array(shape)[[0, 2, 3, 1]])
    assert np.array_equal(got[name], expected)
    assert module[0].operator_names() == qat_module()[0].operator_names()
    # a high-precision output is float where it is moved, and the report says so
    kinds = [note["kind"] for note in converted.report]
    assert kinds == (["stays float"] if output else [])


def test_transposed_codes_can_still_lose_their_dequantize():
    module = qat_module()
    module[0].outputs[0].insert_transpose([0, 3, 1, 2])
    converted, real = bits(module, FEED)
    before = real[converted[0].outputs[0].name]

    converted[0].remove_io_op(["Dequantize"])

    argument = converted[0].outputs[0]
    codes = converted[0].feed(FEED)[argument.name]
    assert (argument.dtype, argument.shape) == ("int8", before.shape)
    assert np.array_equal(codes.astype(np.float32) * np.float32(argument.scale), before)


def test_split_input_is_one_argument_for_each_index():
    module = qat_module()

    parts = module[0].inputs[0].insert_split(0)

    assert [(p.name, p.shape) for p in parts] == [
        ("image_0", (1, 3, 8, 8)),
        ("image_1", (1, 3, 8, 8)),
    ]
    feed = {"image_0": X[:1].numpy(), "image_1": X[1:].numpy()}
    expected = bits(qat_module(), FEED)[1]
    got = bits(module, feed)[1]
    for name, value in expected.items():
        assert np.array_equal(got[name], value)
    assert not module[0].open_batch


def test_split_arguments_are_a_tuple_in_the_place_of_the_argument():
    module = qat_module()
    module[0].inputs[0].insert_split(0)
    module[0].outputs[1].insert_split(0)
    expected = qat_module()[0](X)

    first, second = module[0]((X[:1], X[1:])), module[0](X[:1], X[1:])

    assert [type(item).__name__ for item in first] == ["Tensor", "tuple"]
    assert np.array_equal(first[0], expected[0])
    for index in (0, 1):
        assert np.array_equal(first[1][index], expected[1][index : index + 1])
        assert np.array_equal(second[1][index], first[1][index])
    names = [item.name for item in module[0].outputs]
    assert names == ["_output_0", "_output_1_0", "_output_1_1"]


def test_transposed_parts_of_a_split_input_run():
    module = qat_module()
    for part in module[0].inputs[0].insert_split(0):
        part.insert_transpose([0, 3, 1, 2])
    feed = {
        f"image_{n}": np.ascontiguousarray(X[n : n + 1].permute(0, 2, 3, 1).numpy()) for n in (0, 1)
    }

    expected = bits(qat_module(), FEED)[1]
    got = bits(module, feed)[1]

    for name, value in expected.items():
        assert np.array_equal(got[name], value)


def test_changed_modules_are_saved_whole():
    module = qat_module()
    module[0].inputs[0].insert_transpose([0, 3, 1, 2])
    module[0].inputs[0].desc = "NHWC"

    again = from_bytes(module.to_bytes())

    moved = np.ascontiguousarray(X.numpy().transpose(0, 2, 3, 1))
    expected = module[0].feed({"image": moved})
    for name, value in again[0].feed({"image": moved}).items():
        assert np.array_equal(value, expected[name])
    assert again[0].inputs[0].desc == "NHWC"


def test_misuse_names_argument_and_remedy():
    module = qat_module()
    argument = module[0].inputs[0]
    with pytest.raises(ArgumentError, match=r"'image'.*each of 0\.\.3 once, got \(0, 1\)"):
        argument.insert_transpose((0, 1))
    for order in (None, "0312", [0.0, 3.0, 1.0, 2.0], [True, 0, 2, 3]):
        with pytest.raises(ArgumentError, match=r"'image'.*each of 0\.\.3 once"):
            argument.insert_transpose(order)
    for dim in (4, None, 1.5):
        with pytest.raises(ArgumentError, match=rf"dimensions 0\.\.3, got dim={dim}"):
            argument.insert_split(dim)
    with pytest.raises(ArgumentError, match="renamed to 3: names are texts"):
        argument.name = 3
    wide = relu_module((2, 300))[0].inputs[0]
    with pytest.raises(ArgumentError, match="300 indices, and a function has at most 256 inputs"):
        wide.insert_split(1)
    argument.insert_transpose([0, 3, 1, 2])
    with pytest.raises(ArgumentError, match=r"'image.*' is no longer part.*function\.inputs"):
        argument.insert_transpose([0, 3, 1, 2])
    converted, _ = bits(qat_module(), FEED)
    with pytest.raises(ArgumentError, match="inserted before convert"):
        converted[0].inputs[0].insert_transpose([0, 3, 1, 2])
