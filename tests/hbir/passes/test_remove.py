"""remove_io_op: host code quantizes and dequantizes with the scales that the arguments keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qtune.arith.quantize import quantize
from qtune.bpu.compiler import compile, convert, statistics
from qtune.dtype import qint8
from qtune.errors import ArgumentError
from qtune.hbir.export import export
from qtune.hbir.module import HbirModule
from qtune.hbir.serialize import from_bytes
from tests.hbir.passes.models import X, qat_module
from tests.hbir.prepared import Prepared


@pytest.fixture
def module() -> HbirModule:
    return convert(qat_module(), "nash-e")


def test_host_code_reproduces_the_module_from_the_kept_scales(module, tmp_path):
    expected = module[0].feed({"image": X.numpy()})

    removed = module[0].remove_io_op(["Quantize", "Dequantize"])

    image, first, second = module[0].inputs[0], *module[0].outputs
    assert len(removed) == 3  # Quantize, Dequantize, DequantizeAcc; identities go with them
    assert [image.dtype, first.dtype, second.dtype] == ["int8", "int8", "int32"]
    assert isinstance(second.scale, list)
    assert module[0].operator_names() == ["relu", "pool", "head"]
    assert dict(statistics(module))["conv2d"] == 2  # what is left of the head still counts
    codes = quantize(X.numpy(), image.scale, qint8).astype(np.int8)
    again = from_bytes(module.to_bytes())
    hbm = compile(module, tmp_path / "m.hbm", "nash-e")
    for function in (module[0], again[0], hbm[0]):
        got = function.feed({"image": codes})
        real = got[first.name].astype(np.float32) * np.float32(first.scale)
        assert np.array_equal(real, expected[first.name])
        scales = np.array(function.outputs[1].scale).reshape(1, -1, 1, 1)
        exact = (got[second.name] * scales).astype(np.float32)
        assert np.array_equal(exact, expected[second.name])


def test_one_operator_is_removed_by_name(module):
    name = next(op.name for op in module[0].operations if op.type == "qtune::Quantize")

    assert module[0].remove_io_op(op_names=[name]) == [name]

    assert module[0].inputs[0].dtype == "int8"
    assert [item.dtype for item in module[0].outputs] == ["float32", "float32"]


def test_transpose_and_reshape_go_from_both_ends():
    torch.manual_seed(0)
    p = Prepared()
    x = p.function("permute", p.input(), name="perm", out=None, dims=(0, 3, 1, 2))
    q = p.module(nn.Identity(), x, name="same", out=None)
    c = p.module(nn.Conv2d(3, 4, 1), p.quantized_input("y"), name="conv", out=qint8)
    f = p.function("flatten", c, name="flat", out=None, start_dim=1, end_dim=-1)
    outputs = p.outputs(p.dequantized(f, "d"), q)
    y = X[:, :, :2, :2]
    nhwc = y.permute(0, 2, 3, 1).contiguous()
    module = convert(export(outputs.calibrated(nhwc, y), (nhwc, y)), "nash-e")
    expected = module[0].feed({"_input_0": nhwc.numpy(), "_input_1": y.numpy()})

    module[0].remove_io_op(["Dequantize", "Reshape"])

    first = module[0].outputs[0]
    assert (first.dtype, first.shape) == ("int8", (2, 4, 2, 2))
    got = module[0].feed({"_input_0": nhwc.numpy(), "_input_1": y.numpy()})
    real = got[first.name].astype(np.float32) * np.float32(first.scale)
    assert np.array_equal(real.reshape(2, -1), expected[first.name])


def test_softmax_on_the_cpu_goes_before_the_dequantize():
    torch.manual_seed(0)
    p = Prepared()
    c = p.module(nn.Conv2d(3, 4, 1), p.quantized_input(), name="conv", out=qint8)
    s = p.function("softmax", p.dequantized(c, "d"), name="soft", out=None, dim=1, dtype=None)
    module = convert(export(p.outputs(s).calibrated(X), X), "nash-e")
    expected = module[0](X)

    removed = module[0].remove_io_op(["Softmax", "Dequantize"])

    assert len(removed) == 2
    (output,) = module[0].outputs
    real = torch.from_numpy(module[0].feed({"_input_0": X.numpy()})[output.name]) * output.scale
    # float32 softmax computed by torch on the same numbers
    assert torch.allclose(torch.softmax(real, 1), expected, rtol=1e-6, atol=1e-7)


def test_misuse_is_named(module):
    function = module[0]
    with pytest.raises(ArgumentError, match="say what to remove: op_types"):
        function.remove_io_op()
    with pytest.raises(ArgumentError, match=r"expected one of Quantize, .* got 'Conv'"):
        function.remove_io_op(["Conv"])
    with pytest.raises(NotImplementedError, match="FilterCopy"):
        function.remove_io_op(["FilterCopy"])
    with pytest.raises(ArgumentError, match="list of texts, got 'Quantize'"):
        function.remove_io_op("Quantize")
    with pytest.raises(ArgumentError, match="no operator 'nothing' here"):
        function.remove_io_op(op_names=["nothing"])
    with pytest.raises(ArgumentError, match=r"'pool' is on no input and no output"):
        function.remove_io_op(op_names=["pool"])


def test_argument_says_what_is_attached_and_whether_it_can_go(module):
    image = module[0].inputs[0]
    (operation,) = image.get_attached_op
    assert operation.type == "qtune::Quantize"
    assert operation.inputs[0].shape == image.shape
    assert operation.outputs[0].quant_dtype == "qint8"
    assert image.is_removable
    assert image.is_removable[0] is True

    assert image.remove_attached_op()

    verdict = module[0].inputs[0].is_removable
    assert not verdict
    assert "is none of Quantize" in verdict.reason
    assert not module[0].inputs[0].remove_attached_op()
    assert not module[0].inputs[0].erase()


def test_erased_output_takes_what_only_it_needs(module):
    head = module[0].outputs[1]
    assert any(operation.op == "head" for operation in module[0].operations)
    expected = module[0].feed({"image": X.numpy()})["_output_0"]

    assert head.erase()

    assert not any(operation.op == "head" for operation in module[0].operations)
    first, second = module[0](X)  # the erased one is None in the call's containers
    assert np.array_equal(first, expected)
    assert second is None
    verdict = module[0].outputs[0].erase()
    assert not verdict
    assert "only output" in verdict.reason


def test_arguments_are_renamed_and_described(module):
    module[0].inputs[0].name = "camera"
    module[0].inputs[0].desc = "front"
    module[0].desc = "detector"

    again = from_bytes(module.to_bytes())[0]

    assert (again.inputs[0].name, again.inputs[0].desc, again.desc) == (
        "camera",
        "front",
        "detector",
    )
    assert set(again.feed({"camera": X.numpy()})) == {"_output_0", "_output_1"}
    with pytest.raises(ArgumentError, match="can't be renamed to '_output_0'"):
        module[0].inputs[0].name = "_output_0"
