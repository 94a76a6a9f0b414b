"""Reading calibrated models: what is a calibration node, of which kind, who uses it."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug.load import load_calibrated

from . import nets


def test_a_calibrated_model_is_described() -> None:
    model = load_calibrated(nets.residual())
    assert [node.name for node in model.nodes] == [
        "Conv_0",
        "Relu_1",
        "Conv_2",
        "Add_3",
        "Flatten_4",
        "Gemm_5",
    ]
    assert model.names("weight") == [f"{w}_HzCalibration" for w in ("w0", "w1", "w2")]
    assert model.calibrations["r_HzCalibration"].users == ("Conv_2", "Add_3")
    assert model.names("node") == ["Conv_0", "Conv_2", "Add_3", "Gemm_5"]


def test_onnxruntime_runs_a_calibrated_model_as_it_is() -> None:
    proto = nets.residual()
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": nets.data(1)[0]})
    assert y.shape == (1, 5)


def test_the_body_is_the_rule() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 2, (2, 3, 5)).astype(np.float32)
    x[0, 0, 0] = np.nan
    per_tensor = Calibration(np.array([1 / 64], np.float32), np.array([2], np.float32))
    scales = np.array([0.01, 0.02, 0.5], np.float32)
    per_channel = Calibration(scales, scales * np.float32(128), 8, 1)
    wide = Calibration(np.array([1e-4], np.float32), np.array([3.2768], np.float32), 16)
    for held in (per_tensor, per_channel, wide):
        got = _run(held, x)
        np.testing.assert_array_equal(got, hz_calibration.apply(held, x))


def _run(held: Calibration, x: nets.Array) -> nets.Array:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [hz_calibration.make_node("x_HzCalibration", "x", "y", held)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: nets.Array = session.run(None, {"x": x})[0]
    return result
