"""Files that other tools write otherwise: nodes in any order, half and double precision."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import import_onnx
from qtune.hbir.onnx_import.order import put_in_order

from .single_nodes import by_onnxruntime, make, model_of, normal, stated


def test_nodes_in_any_order_run_in_the_order_of_their_tensors() -> None:
    x = normal(2, 3)
    nodes = [
        make("Add", ["b", "a"], ["y"], name="last"),
        make("Neg", ["a"], ["b"], name="second"),
        make("Relu", ["x"], ["a"], name="first"),
    ]
    ordered = stated(model_of(nodes[::-1], x), [x])
    expected = by_onnxruntime(ordered, x)
    proto = stated(model_of(nodes, x), [x])
    before = proto.SerializeToString()
    module = import_onnx(proto)
    np.testing.assert_array_equal(np.asarray(module(x)[0]), expected[0])
    assert module[0].operator_names() == ["first", "second", "last"]
    assert proto.SerializeToString() == before


def test_nodes_keep_their_order_where_it_is_free() -> None:
    nodes = [make("Relu", [name], [f"{name}r"], name=name) for name in "dbca"]
    late = [make("Neg", ["er"], ["n"], name="n"), *nodes, make("Relu", ["x"], ["er"], name="e")]
    graph = helper.make_graph(late, "g", [], [])
    put_in_order(graph)
    assert [node.name for node in graph.node] == ["d", "b", "c", "a", "e", "n"]


def test_what_a_branch_reads_comes_before_it() -> None:
    inner = helper.make_graph([make("Neg", ["a"], ["z"])], "then", [], [])
    nodes = [make("If", ["c"], ["y"], name="if", then_branch=inner, else_branch=inner),
             make("Relu", ["x"], ["a"], name="relu")]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [], [])
    put_in_order(graph)
    assert [node.name for node in graph.node] == ["relu", "if"]


def test_a_circle_is_refused_in_onnxs_words() -> None:
    x = normal(2, 3)
    nodes = [make("Add", ["x", "y"], ["a"], name="one"), make("Neg", ["a"], ["y"], name="two")]
    with pytest.raises(OnnxImportError, match="no valid ONNX model: .*topolog"):
        import_onnx(stated(model_of(nodes, x), [x]))


@pytest.mark.parametrize(
    ("kind", "dtype"), [(TensorProto.FLOAT16, np.float16), (TensorProto.DOUBLE, np.float64)]
)
def test_half_and_double_models_say_how_to_become_float32(kind: int, dtype: type) -> None:
    x = normal(2, 3).astype(dtype)
    w = np.ones((3, 3), dtype)
    proto = model_of(make("MatMul", ["x", "w"], ["y"]), x, {"w": w}, elements=kind)
    name = TensorProto.DataType.Name(kind)
    with pytest.raises(OnnxImportError, match=rf"'x'.* type {name}; .*float32.*model\.float\(\)"):
        import_onnx(stated(proto, [x]))


def test_half_precision_between_float32_ends_is_named_too() -> None:
    x = normal(2, 3)
    nodes = [
        make("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        make("MatMul", ["h", "w"], ["p"]),
        make("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = stated(model_of(nodes, x, {"w": np.ones((3, 3), np.float16)}), [x])
    with pytest.raises(OnnxImportError, match="'w' has elements of type FLOAT16"):
        import_onnx(proto)


def test_a_double_number_among_float32_is_left_alone() -> None:
    x = normal(2, 3)
    nodes = [
        make("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        make("Mul", ["x", "f"], ["y"]),
    ]
    proto = stated(model_of(nodes, x, {"n": np.array(2.0)}), [x])
    assert isinstance(proto, onnx.ModelProto)
    np.testing.assert_array_equal(np.asarray(import_onnx(proto)(x)[0]), 2 * x)
