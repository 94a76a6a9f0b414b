"""Control flow in ONNX files: what constants and sizes decide is gone, the rest is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtune.errors import ArgumentError, OnnxImportError
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug.build.optimize import optimized

make, info = helper.make_node, helper.make_tensor_value_info
FLOAT = TensorProto.FLOAT


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A branch that gives ``name``, of unknown shape."""
    result = helper.make_tensor_type_proto(FLOAT, None)
    return helper.make_graph(list(nodes), name, [], [helper.make_value_info(name, result)])


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Any], result: Any, **numbers: Any
) -> onnx.ModelProto:
    types = {"rate": TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        "net",
        [info(name, types.get(name, FLOAT), shape) for name, shape in inputs.items()],
        [info("y", FLOAT, result)],
        [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def sizes_of_sizes() -> onnx.ModelProto:
    """Each condition asks for the shape of what the If before it gives, as torch exports."""
    nodes = []
    source = "x"
    for index in range(3):
        sizes, size, is_one, cut = (f"{word}{index}" for word in ("sizes", "size", "is", "cut"))
        nodes += [
            make("Shape", [source], [sizes]),
            make("Gather", [sizes, "first"], [size]),
            make("Equal", [size, "one"], [is_one]),
            make(
                "If",
                [is_one],
                [cut],
                name=f"choice{index}",
                then_branch=branch(f"t{index}", make("Squeeze", [source, "zero"], [f"t{index}"])),
                else_branch=branch(f"e{index}", make("Identity", [source], [f"e{index}"])),
            ),
        ]
        source = cut
    inputs: dict[str, Any] = {"x": ["n", "m", "k"]}
    nodes.append(make("Relu", [source], ["y"], name="act"))
    numbers = {"first": np.int64(0), "one": np.int64(1), "zero": np.zeros(1, np.int64)}
    return model(nodes, inputs, ["l"], **numbers)


def test_an_if_decides_the_shape_that_decides_the_next() -> None:
    x = np.arange(-3, 2, dtype=np.float32).reshape(1, 1, 5)
    module = import_onnx(sizes_of_sizes(), input_shapes={"x": x.shape})
    assert "act" in module[0].operator_names()
    np.testing.assert_array_equal(module[0].feed({"x": x})["y"], np.maximum(x, 0).reshape(5))
    made = optimized(sizes_of_sizes(), {"x": list(x.shape)})
    assert [node.op_type for node in made.graph.node] == ["Squeeze", "Squeeze", "Relu"]


def by_rate() -> onnx.ModelProto:
    """Which operator runs hangs on the input ``rate``, as in nets for several sampling rates."""
    choice = make(
        "If",
        ["is_fast"],
        ["y"],
        name="choice",
        then_branch=branch("fast", make("Relu", ["x"], ["fast"])),
        else_branch=branch("slow", make("Neg", ["x"], ["slow"])),
    )
    nodes = [make("Equal", ["rate", "fast_rate"], ["is_fast"]), choice]
    return model(nodes, {"x": [1, 4], "rate": []}, [1, 4], fast_rate=np.int64(16000))


@pytest.mark.parametrize("read", [import_onnx, optimized])
def test_an_if_that_an_input_decides_is_refused_with_that_input(read: Any) -> None:
    with pytest.raises(
        OnnxImportError,
        match=r"choice: If: its condition .* the input\(s\) rate\. .* an initializer of its name",
    ):
        read(by_rate())


@pytest.mark.parametrize(("rate", "expected"), [(16000, [0, 0, 1, 2]), (8000, [1, 0, -1, -2])])
def test_the_input_made_an_initializer_decides(rate: int, expected: list[float]) -> None:
    fixed = by_rate()
    fixed.graph.input.remove(next(i for i in fixed.graph.input if i.name == "rate"))
    fixed.graph.initializer.append(numpy_helper.from_array(np.int64(rate), "rate"))
    x = np.array([[-1, 0, 1, 2]], np.float32)
    assert import_onnx(fixed)[0].feed({"x": x})["y"].tolist() == [expected]


def test_one_error_asks_for_the_sizes_of_all_inputs() -> None:
    add = make("Add", ["a", "b"], ["y"])
    free = model([add], {"a": ["n", "m"], "b": ["n", "m"], "c": ["n", 2]}, ["n", "m"])
    listed = r"{'a': \[\.\.\.\], 'b': \[\.\.\.\]}:\n  - 'a': \[None, None\]\n  - 'b'"
    with pytest.raises(OnnxImportError, match="input_shapes=" + listed):
        import_onnx(free)
    with pytest.raises(ArgumentError, match=r"(?s)input_dict=.*- 'a': \[any, any\]\n  - 'b'"):
        optimized(free)
