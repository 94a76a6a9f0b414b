"""A composed operator between the pairs of a file runs in float: its parts have no grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtune.bpu.convert import convert
from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.hbir.onnx_import import import_onnx

X = np.random.default_rng(0).normal(size=(1, 4, 6)).astype(np.float32)


def grid(name: str, source: str, output: str, scale: float) -> onnx.NodeProto:
    held = Calibration(np.full(1, scale, np.float32), np.full(1, scale * 128, np.float32))
    return hz_calibration.make_node(name, source, output, held)


@pytest.mark.parametrize(
    ("op_type", "sizes", "attributes"),
    [
        ("LayerNormalization", 6, {"axis": -1}),
        ("InstanceNormalization", 4, {}),
        ("GroupNormalization", 4, {"num_groups": 2}),
    ],
)
def test_a_norm_between_grids_is_converted_and_right(
    op_type: str, sizes: int, attributes: dict[str, Any]
) -> None:
    weights = np.linspace(0.5, 1.5, sizes, dtype=np.float32)
    nodes = [
        grid("before", "x", "x_q", 0.025),
        helper.make_node(op_type, ["x_q", "w", "b"], ["n"], name="norm", **attributes),
        grid("behind", "n", "n_q", 0.025),
        helper.make_node("Relu", ["n_q"], ["y"], name="relu"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, X.shape) for name in "xy"]
    constants = [numpy_helper.from_array(weights * s, name) for name, s in (("w", 1), ("b", 0.1))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    qat = import_onnx(model)
    (expected,) = qat[0].run({"x": X}).values()
    (found,) = convert(qat, "nash-e")[0].run({"x": X}).values()
    # float on both sides up to the second grid, where a value next to a tie may take either code
    assert np.abs(np.asarray(found) - np.asarray(expected)).max() <= 0.0251
    assert np.asarray(expected).max() > 1


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("ReduceL2", ["x_q", "axes"], {}),
        ("GlobalLpPool", ["x_q"], {}),
        ("LpNormalization", ["x_q"], {"axis": 1}),
        ("LRN", ["x_q"], {"size": 3}),
    ],
)
def test_a_length_between_grids_is_converted_and_right(
    op_type: str, inputs: list[str], attributes: dict[str, Any]
) -> None:
    nodes = [
        grid("before", "x", "x_q", 0.025),
        helper.make_node(op_type, inputs, ["n"], name="length", **attributes),
        grid("behind", "n", "n_q", 0.025),
        helper.make_node("Relu", ["n_q"], ["y"], name="relu"),
    ]
    x = X[..., None]
    sizes = {"ReduceL2": (1, 1, 6, 1), "GlobalLpPool": (1, 4, 1, 1)}.get(op_type, x.shape)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("y", sizes))
    ]
    axes = [numpy_helper.from_array(np.array([1]), "axes")] if op_type == "ReduceL2" else []
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], axes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    qat = import_onnx(model)
    (expected,) = qat[0].run({"x": x}).values()
    (found,) = convert(qat, "nash-e")[0].run({"x": x}).values()
    # float on both sides up to the second grid, where a value next to a tie may take either code
    assert np.abs(np.asarray(found) - np.asarray(expected)).max() <= 0.0251
    assert np.asarray(expected).max() > 0.5
