"""Large constants stay out of the copies that checks and conversions make."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import checker, helper, numpy_helper, version_converter

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import source as files

from .quantized_files import graph_of

SIDE = 160  # a float32 matrix of 102,400 bytes


def wide(opset: int = 21, *, in_inputs: bool = False, is_result: bool = False) -> onnx.ModelProto:
    """``x @ w``, a pair before it, and the mean of ``w`` added."""
    make = helper.make_node
    axes = {"axes": [0]} if opset < 18 else {}
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make("DequantizeLinear", ["q", "s", "z"], ["d"]),
        make("MatMul", ["d", "w"], ["p"]),
        make("ReduceMean", ["w", *([] if axes else ["axes"])], ["m"], **axes),
        make("Add", ["p", "m"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    constants: dict[str, Any] = {
        "w": rng.normal(0, 1, (SIDE, SIDE)).astype(np.float32),
        "s": np.float32(0.1),
        "z": np.int8(3),
    } | ({} if axes else {"axes": np.array([0])})
    model = graph_of(nodes, (2, SIDE), constants, opset)
    if in_inputs:
        kind = onnx.TensorProto.FLOAT
        model.graph.input.append(helper.make_tensor_value_info("w", kind, (SIDE, SIDE)))
    if is_result:
        model.graph.output.append(model.graph.input[-1])
    return model


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the models that onnx's checker and converter were given."""
    found: list[int] = []
    for module, name in ((checker, "check_model"), (version_converter, "convert_version")):
        real = getattr(module, name)

        def noted(proto: onnx.ModelProto, *rest: Any, _real: Any = real) -> Any:
            found.append(proto.ByteSize())
            return _real(proto, *rest)

        monkeypatch.setattr(module, name, noted)
    return found


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("in_inputs", [False, True])
@pytest.mark.parametrize("read", [files.read, files.read_calibrated])
def test_the_model_has_its_constants_again(
    opset: int, in_inputs: bool, read: Any, largest: list[int]
) -> None:
    given = wide(opset, in_inputs=in_inputs)
    before = given.SerializeToString(deterministic=True)
    got = read(given)
    assert given.SerializeToString(deterministic=True) == before
    assert largest
    assert max(largest) < 4 * SIDE * SIDE
    found = {t.name: numpy_helper.to_array(t) for t in got.graph.initializer}
    expected = {t.name: numpy_helper.to_array(t) for t in given.graph.initializer}
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    inputs = [info.name for info in got.graph.input]
    assert inputs == (["x", "w"] if in_inputs and read is files.read else ["x"])
    checker.check_model(got)


def test_a_large_constant_that_is_a_result_stays_one() -> None:
    got = files.read(wide(in_inputs=True, is_result=True))
    assert [info.name for info in got.graph.output] == ["y", "w"]
    assert "w" in {tensor.name for tensor in got.graph.initializer}


def test_a_large_constant_of_the_wrong_size_is_refused() -> None:
    model = wide()
    (tensor,) = (t for t in model.graph.initializer if t.name == "w")
    tensor.raw_data = tensor.raw_data[:-4]
    with pytest.raises(OnnxImportError, match="no valid ONNX model: .*w"):
        files.read(model)
