"""Gather of imported files: an axis counted from behind, indices of any rank and from behind."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtune.bpu.convert import convert
from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.hbir.onnx_import import import_onnx

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def gathering(index: np.ndarray, axis: int) -> onnx.ModelProto:
    grid = Calibration(np.ones(1, np.float32), np.full(1, 127.5, np.float32))
    nodes = [
        hz_calibration.make_node("grid", "x", "on_grid", grid),
        helper.make_node("Gather", ["on_grid", "index"], ["y"], name="gather", axis=axis),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(index, "index")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("axis", range(-3, 3))
@pytest.mark.parametrize("index", [1, [0], [-1, 0], [[0, 1], [-1, -2]]])
def test_any_axis_and_any_index_give_what_numpy_takes(index: list[int], axis: int) -> None:
    chosen = np.asarray(index, np.int64)
    qat = import_onnx(gathering(chosen, axis))
    expected = np.take(X, chosen, axis)
    for module in (qat, convert(qat, "nash-e")):
        (found,) = module[0].feed({"x": X}).values()
        assert np.array_equal(np.asarray(found), expected)
