"""Small calibrated models written out by hand, with weights from a fixed seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration

Array = np.ndarray[Any, Any]
SHAPE = (1, 3, 8, 8)


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "w0": rng.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32),
        "b0": rng.normal(0, 0.1, (4,)).astype(np.float32),
        "w1": rng.normal(0, 0.3, (4, 4, 3, 3)).astype(np.float32),
        "b1": rng.normal(0, 0.1, (4,)).astype(np.float32),
        "w2": rng.normal(0, 0.3, (5, 256)).astype(np.float32),
        "b2": rng.normal(0, 0.1, (5,)).astype(np.float32),
    }


def residual(*, bits: int = 8) -> onnx.ModelProto:
    """Conv_0, Relu_1, Conv_2, Add_3 (Relu_1 and Conv_2), Flatten_4, Gemm_5; all inputs calibrated.

    Calibration nodes: ``x``, ``w0``, ``r`` (for Conv_2 and Add_3), ``w1``, ``c``, ``f``, ``w2``,
    each with ``_HzCalibration`` behind it.
    """
    stored = weights()

    def activation(tensor: str, threshold: float) -> onnx.NodeProto:
        scale = np.array([threshold / (2 ** (bits - 1) - 0.5)], np.float32)
        held = Calibration(scale, np.array([threshold], np.float32), bits)
        return _node(tensor, held)

    def weight(tensor: str) -> onnx.NodeProto:
        array = stored[tensor]
        absmax = np.abs(array).max(axis=tuple(range(1, array.ndim))).astype(np.float32)
        held = Calibration((absmax / np.float32(127.5)).astype(np.float32), absmax, 8, 0)
        return _node(tensor, held)

    nodes = [
        activation("x", 3.0),
        weight("w0"),
        _make("Conv", ["x", "w0"], ["b0"], "v", "Conv_0", pads=[1] * 4),
        helper.make_node("Relu", ["v"], ["r"], name="Relu_1"),
        activation("r", 4.0),
        weight("w1"),
        _make("Conv", ["r", "w1"], ["b1"], "c", "Conv_2", pads=[1] * 4),
        activation("c", 5.0),
        _make("Add", ["r", "c"], [], "s", "Add_3"),
        helper.make_node("Flatten", ["s"], ["f"], name="Flatten_4"),
        activation("f", 6.0),
        weight("w2"),
        _make("Gemm", ["f", "w2"], ["b2"], "y", "Gemm_5", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 5))],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    return model


def data(count: int = 3) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.normal(0, 1, SHAPE).astype(np.float32) for _ in range(count)]


def _node(tensor: str, held: Calibration) -> onnx.NodeProto:
    name = f"{tensor}_HzCalibration"
    return hz_calibration.make_node(name, tensor, f"{tensor}_q", held)


def _make(
    op: str, calibrated: list[str], plain: list[str], output: str, name: str, **attrs: Any
) -> onnx.NodeProto:
    inputs = [f"{tensor}_q" for tensor in calibrated] + plain
    return helper.make_node(op, inputs, [output], name=name, **attrs)
