"""Recurrent layers and LRN of imported files against onnxruntime; sizes of -1 are free."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import import_onnx

Array = np.ndarray[Any, Any]
STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 5, 4


def model(
    node: onnx.NodeProto, x: tuple[int, ...], constants: dict[str, Array] | None = None
) -> onnx.ModelProto:
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        outputs,
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return shape_inference.infer_shapes(made)


def assert_like_onnxruntime(proto: onnx.ModelProto, x: Array) -> None:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, expected in zip(import_onnx(proto)(x), session.run(None, {"x": x}), strict=True):
        # float32: onnxruntime adds the same products in another order
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-6)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def lstm(direction: str, *, states: bool = True, **attrs: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    count = 2 if direction == "bidirectional" else 1
    shapes = {"w": (4 * HIDDEN, WIDTH), "r": (4 * HIDDEN, HIDDEN), "b": (8 * HIDDEN,)}
    constants = {k: rng.normal(0, 0.5, (count, *s)).astype(np.float32) for k, s in shapes.items()}
    for name in ("h", "c") if states else ():
        constants[name] = rng.normal(0, 1, (count, BATCH, HIDDEN)).astype(np.float32)
    node = helper.make_node(
        "LSTM",
        ["x", "w", "r", "b", "", *(("h", "c") if states else ())],
        ["y", "y_h", "y_c"],
        name="recurrent",
        hidden_size=HIDDEN,
        direction=direction,
        **attrs,
    )
    return model(node, (STEPS, BATCH, WIDTH), constants)


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_all_results_of_an_lstm_are_those_of_onnxruntime(direction: str, states: bool) -> None:
    x = np.random.default_rng(1).normal(0, 1, (STEPS, BATCH, WIDTH)).astype(np.float32)
    assert_like_onnxruntime(lstm(direction, states=states), x)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("GRU", {"linear_before_reset": 0}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {}),
        ("RNN", {"activations": ["Relu", "Relu"]}),
    ],
)
def test_all_results_of_a_gru_or_rnn_are_those_of_onnxruntime(
    op_type: str, attrs: dict[str, Any], direction: str, given: bool
) -> None:
    rng, gates = np.random.default_rng(2), GATES[op_type]
    count = 2 if direction == "bidirectional" else 1
    sizes = {"w": (gates * HIDDEN, WIDTH), "r": (gates * HIDDEN, HIDDEN)}
    sizes |= {"b": (2 * gates * HIDDEN,), "h": (BATCH, HIDDEN)} if given else {}
    constants = {k: rng.normal(0, 0.5, (count, *s)).astype(np.float32) for k, s in sizes.items()}
    names = ["x", "w", "r", *(("b", "", "h") if given else ())]
    if "activations" in attrs:
        attrs = {"activations": attrs["activations"][:count]}
    node = helper.make_node(
        op_type, names, ["y", "y_h"], hidden_size=HIDDEN, direction=direction, **attrs
    )
    x = rng.normal(0, 1, (STEPS, BATCH, WIDTH)).astype(np.float32)
    assert_like_onnxruntime(model(node, x.shape, constants), x)


@pytest.mark.parametrize(
    ("attrs", "named"),
    [
        ({"activations": ["Relu", "Tanh", "Tanh"]}, "relu"),
        ({"clip": 3.0}, "clip=3.0"),
        ({"input_forget": 1}, "input_forget=1"),
    ],
)
def test_an_lstm_of_another_form_is_refused_by_name(attrs: dict[str, Any], named: str) -> None:
    with pytest.raises(OnnxImportError, match=f"recurrent: LSTM: .*{named}"):
        import_onnx(lstm("forward", **attrs))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_lrn_is_that_of_the_standard_also_with_an_even_window(size: int) -> None:
    node = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.5, beta=0.7, bias=2.0)
    shape = (2, 6, 3, 4)
    x = np.random.default_rng(size).normal(0, 2, shape).astype(np.float32)
    near = [
        (x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(1, keepdims=True)
        for c in range(shape[1])
    ]
    expected = x / (2.0 + 0.5 / size * np.concatenate(near, 1)) ** 0.7
    # float32: sums and a power in another order
    got = np.asarray(import_onnx(model(node, shape))(x)[0])
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_lrn_of_rows_is_refused() -> None:
    node = helper.make_node("LRN", ["x"], ["y"], name="norm", size=3)
    with pytest.raises(OnnxImportError, match=r"norm: LRN: .*\[2, 6, 3\].*only maps NCHW"):
        import_onnx(model(node, (2, 6, 3)))


def test_a_size_of_minus_one_is_free() -> None:
    proto = model(helper.make_node("Relu", ["x"], ["y"]), (-1, 3))
    for batch in (1, 4):
        assert_like_onnxruntime(proto, np.full((batch, 3), -0.5 + batch, np.float32))
