"""extract_function: parts of a module as modules of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.bpu.compiler import convert
from qtune.errors import ArgumentError
from tests.hbir.passes.models import X, qat_module


def test_parts_in_a_row_give_the_bits_of_the_whole():
    module = convert(qat_module(), "nash-e")
    expected = module[0].feed({"image": X.numpy()})

    first = module[0].extract_function(["image"], ["relu"])
    second = module[0].extract_function(["relu"], ["_output_0", "_output_1"])

    codes = first[0](X)
    assert codes.dtype == torch.int8
    assert first[0].outputs[0].scale == second[0].inputs[0].scale
    results = second[0](codes)
    for value, name in zip(results, ("_output_0", "_output_1"), strict=True):
        assert np.array_equal(value, expected[name])
    assert module[0].feed({"image": X.numpy()}).keys() == expected.keys()


def test_qat_modules_are_cut_as_well():
    module = qat_module()
    part = module[0].extract_function(["image"], ["pool"])

    assert part.stage == "qat"
    assert torch.equal(part[0](X), module[0](X)[0])


def test_missing_inputs_and_unknown_names_are_named():
    module = qat_module()
    with pytest.raises(ArgumentError, match="no value or operator 'nothing'; operators are x_q"):
        module[0].extract_function(["image"], ["nothing"])
    with pytest.raises(ArgumentError, match="also need the input 'image'"):
        module[0].extract_function(["pool"], ["relu", "head"])
    with pytest.raises(ArgumentError, match="input_names must be a list of different names"):
        module[0].extract_function("image", ["relu"])


def test_operations_are_named_objects():
    operations = convert(qat_module(), "nash-e")[0].operations

    conv = next(op for op in operations if op.type == "qtune::QConv" and op.group == "relu")
    assert conv.attributes["strides"] == (1, 1)
    assert conv.inputs[0].quant_dtype == "qint8"
    assert [item.constant for item in conv.inputs][:2] == [False, True]
    assert conv.outputs[0].shape == (2, 8, 8, 8)
