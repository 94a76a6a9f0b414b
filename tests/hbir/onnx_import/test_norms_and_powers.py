"""Norms, powers and roots of imported files: the registry's operators, like onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import import_onnx

make = helper.make_node
Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).normal(0, 1, (2, 3, 6)).astype(np.float32)
NORM = ["ReduceMean", "Sub", "Mul", "ReduceMean", "Rsqrt", "Mul", "Mul", "Add"]


def model(
    nodes: list[onnx.NodeProto], outputs: list[str], constants: dict[str, Array], x: Array = X
) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "few",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def kinds(proto: onnx.ModelProto, x: Array = X) -> list[str]:
    """The operators of the module, after it gave what onnxruntime gives."""
    module = import_onnx(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, expected in zip(module(x), session.run(None, {"x": x}), strict=True):
        # float32: onnxruntime adds the same numbers in another order
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=2e-6)
    return [node.op_type for node in module.model.graph]


@pytest.mark.parametrize(("axis", "sizes"), [(-1, (6,)), (1, (3, 6)), (0, (2, 3, 6))])
def test_a_layer_norm_is_its_parts_over_all_axes_from_its_own_on(
    axis: int, sizes: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(1)
    constants = {name: rng.normal(1, 1, sizes).astype(np.float32) for name in ("w", "b")}
    node = make("LayerNormalization", ["x", "w", "b"], ["y"], axis=axis, epsilon=1e-3)
    assert kinds(model([node], ["y"], constants)) == NORM


def test_a_layer_norm_gives_its_statistics_where_they_are_read() -> None:
    node = make("LayerNormalization", ["x", "w"], ["y", "mean", "inverse"], axis=1)
    proto = model([node], ["y", "mean", "inverse"], {"w": np.ones((3, 6), np.float32)})
    assert kinds(proto) == NORM[:-1]


@pytest.mark.parametrize("op_type", ["ReduceL1", "ReduceL2"])
@pytest.mark.parametrize(("axes", "keepdims"), [([-1], 1), ([0, 2], 0), (None, 1)])
def test_a_norm_of_vectors_is_that_of_the_registry(
    op_type: str, axes: list[int] | None, keepdims: int
) -> None:
    constants = {} if axes is None else {"axes": np.array(axes)}
    node = make(op_type, ["x", *constants], ["y"], keepdims=keepdims)
    parts = {"ReduceL1": ["Abs", "ReduceSum"], "ReduceL2": ["Mul", "ReduceSum", "Sqrt"]}
    assert kinds(model([node], ["y"], constants)) == parts[op_type]


def test_a_norm_of_integers_is_refused_by_name() -> None:
    x = X.astype(np.int32)
    proto = model([make("ReduceL2", ["x"], ["y"], name="length")], ["y"], {}, x)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    with pytest.raises(OnnxImportError, match="length: ReduceL2: int32 numbers"):
        import_onnx(proto)


@pytest.mark.parametrize(
    ("number", "operator"),
    [(2.0, "Mul"), (0.5, "Sqrt"), (-1.0, "Reciprocal"), (-0.5, "Rsqrt"), (3.0, "PowerTo")],
)
def test_a_power_with_a_number_is_one_operator(number: float, operator: str) -> None:
    nodes = [make("Pow", ["x", "n"], ["y"])]
    constants = {"n": np.float32(number).reshape(())}
    x = np.abs(X) + np.float32(0.1)
    assert kinds(model(nodes, ["y"], constants, x), x) == [operator]
    whole = {"n": np.array([number], np.float32)}
    assert kinds(model(nodes, ["y"], whole, x), x) == [operator]


def test_a_number_to_the_power_of_a_tensor_is_one_operator() -> None:
    proto = model([make("Pow", ["n", "x"], ["y"])], ["y"], {"n": np.float32(2).reshape(())})
    assert kinds(proto) == ["PowerOf"]


def test_a_power_with_several_numbers_stays_a_power() -> None:
    constants = {"n": np.arange(6, dtype=np.float32)}
    assert kinds(model([make("Pow", ["x", "n"], ["y"])], ["y"], constants)) == ["Pow"]


def test_the_inverse_of_a_root_is_one_operator_with_the_number_that_was_added() -> None:
    def net(*nodes: onnx.NodeProto) -> onnx.ModelProto:
        return model(list(nodes), ["y"], {"e": np.float32(0.5).reshape(())}, x)

    x = np.abs(X)
    add, root = make("Add", ["e", "x"], ["a"]), make("Sqrt", ["a"], ["r"])
    proto = net(add, root, make("Reciprocal", ["r"], ["y"]))
    assert kinds(proto, x) == ["Rsqrt"]
    (node,) = import_onnx(proto).model.graph
    assert node.attributes["eps"].value == 0.5
    # what others read stays
    assert kinds(
        net(add, root, make("Reciprocal", ["r"], ["i"]), make("Add", ["i", "r"], ["y"])), x
    ) == ["Add", "Sqrt", "Rsqrt", "Add"]
