"""The builder: names, origins, attribute types, inference."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qtune.errors import HbirError
from qtune.hbir.builder import META_GROUP, META_OP, META_RESULT, GraphBuilder, mark_result


def conv(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    weight = builder.constant(np.ones((4, 3, 3, 3), np.float32), "weight")
    return builder.add("Conv", [x, weight, None], {"pads": [1, 1, 1, 1], "group": None})


def test_nodes_bear_the_operator_they_stand_for():
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (1, 3, 8, 8))
    with builder.emitting_for("conv1", "relu1"):
        y = conv(builder, x)
    with builder.emitting_for("relu1"):
        z = builder.add("Relu", [y])
        mark_result(z, "relu1", "relu1")
    builder.output(z, "y")
    model = builder.finish({})

    first, second = model.graph
    assert first.metadata_props == {META_OP: "conv1", META_GROUP: "relu1"}
    assert second.metadata_props == {META_OP: "relu1", META_GROUP: "relu1", META_RESULT: "1"}
    assert first.inputs[1].name == "conv1.weight"
    assert first.outputs[0].shape.numpy() == (1, 4, 8, 8)
    assert first.outputs[0].dtype == ir.DataType.FLOAT


def test_names_are_unique_whatever_is_emitted():
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (1, 3, 8, 8))
    with builder.emitting_for("conv1"):
        conv(builder, x)
        y = conv(builder, x)
    builder.output(y, "x")
    names = [node.name for node in builder.graph] + [
        value.name for node in builder.graph for value in node.outputs
    ]

    assert len(set(names[:2])) == 2
    assert builder.graph.outputs[0].name == "x_1"
    onnx.checker.check_model(ir.to_proto(builder.finish({})), full_check=True)


def test_constant_holds_a_copy():
    builder = GraphBuilder()
    array = np.zeros(3, np.float32)
    value = builder.constant(array)
    array[:] = 1

    assert value.const_value.numpy().tolist() == [0, 0, 0]


def test_input_passed_through_and_value_given_twice_become_outputs():
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (2,))
    builder.output(x, "same")
    y = builder.add("Relu", [x])
    builder.output(y, "first")
    builder.output(y, "second")
    builder.finish({})

    assert [value.name for value in builder.graph.outputs] == ["same", "first", "second"]


@pytest.mark.parametrize(
    ("op_type", "attrs", "message"),
    [
        ("Relu", {"alpha": 1}, "no attribute alpha"),
        ("NoSuchOp", {}, "no operator onnx::NoSuchOp"),
    ],
)
def test_unknown_operator_or_attribute_is_refused_where_it_is_emitted(op_type, attrs, message):
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (2,))

    with pytest.raises(HbirError, match=message):
        builder.add(op_type, [x], attrs)


def test_python_number_as_input_is_refused():
    builder = GraphBuilder()
    with pytest.raises(HbirError, match="turn numbers into constants"):
        builder.add("Add", [3.0, None])


def test_attributes_get_the_type_of_the_schema():
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (2,))
    value = builder.add("LeakyRelu", [x], {"alpha": 1})

    assert value.producer().attributes["alpha"].type == ir.AttributeType.FLOAT


def test_inconsistent_graph_is_refused_by_the_inference():
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (2, 3))
    y = builder.input("y", ir.DataType.FLOAT, (4, 5))
    builder.output(builder.add("MatMul", [x, y]), "z")

    with pytest.raises(HbirError, match="inconsistent"):
        builder.finish({})


def test_dead_nodes_go_with_their_constants():
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, (1, 3, 8, 8))
    builder.add("Relu", [conv(builder, x)])
    builder.output(builder.add("Relu", [x]), "y")
    builder.remove_dead_nodes()

    assert [node.op_type for node in builder.graph] == ["Relu"]
    assert not builder.graph.initializers
