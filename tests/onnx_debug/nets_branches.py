"""A calibrated net with what makes switching hard: branches, shared weights, chains."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration

Array = np.ndarray[Any, Any]
SHAPE = (1, 4, 8, 8)


def branches() -> onnx.ModelProto:
    """Two inputs, three outputs.

    ``Conv_a`` and ``Conv_b`` share the weight ``w``, and ``x``'s calibration; ``Conv_c`` reads
    ``a`` calibrated and ``Concat_d`` reads it as it is; so is ``d`` read by ``Mul_m`` and
    ``Greater_g``; ``y_q`` is a calibrated output, ``k`` an output of integers, ``z`` depends
    on the second input alone. ``w2`` is a Constant node; ``w2`` and ``z``'s are calibrated twice.
    """
    rng = np.random.default_rng(7)
    w = rng.normal(0, 0.3, (4, 4, 3, 3)).astype(np.float32)
    w2 = rng.normal(0, 0.3, (4, 4, 1, 1)).astype(np.float32)
    w3 = rng.normal(0, 0.3, (8, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Constant", [], ["w2"], "Constant_w2", value=numpy_helper.from_array(w2)),
        grid("x", 3.0),
        grid("w", 0.9),
        helper.make_node("Conv", ["x_q", "w_q"], ["a"], "Conv_a", pads=[1] * 4),
        helper.make_node("Conv", ["x_q", "w_q"], ["b"], "Conv_b", pads=[2] * 4, dilations=[2, 2]),
        grid("a", 4.0),
        grid("w2", 0.8),
        grid("w2_q", 0.7),
        helper.make_node("Conv", ["a_q", "w2_q_q"], ["c"], "Conv_c"),
        helper.make_node("Concat", ["a", "c"], ["d"], "Concat_d", axis=1),
        grid("d", 5.0),
        helper.make_node("Constant", [], ["limit"], "Constant_l", value_float=0.0),
        helper.make_node("Greater", ["d", "limit"], ["is_up"], "Greater_g"),
        helper.make_node("Mul", ["d_q", "w3"], ["m"], "Mul_m"),
        helper.make_node("Where", ["is_up", "m", "d_q"], ["e"], "Where_e"),
        helper.make_node("ReduceMean", ["e"], ["y"], "ReduceMean_y", keepdims=0),
        grid("y", 0.25),
        helper.make_node("ArgMax", ["b"], ["k"], "ArgMax_k", axis=1),
        grid("u", 3.0),
        grid("u_q", 3.0),
        helper.make_node("Sigmoid", ["u_q_q"], ["z"], "Sigmoid_z"),
    ]
    kinds = {"y_q": TensorProto.FLOAT, "k": TensorProto.INT64, "z": TensorProto.FLOAT}
    shapes = {"y_q": (), "k": (1, 1, 8, 8), "z": SHAPE}
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xu"],
        [helper.make_tensor_value_info(n, kind, shapes[n]) for n, kind in kinds.items()],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(w3, "w3")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    return model


def feeds(count: int = 2) -> list[dict[str, Array]]:
    rng = np.random.default_rng(3)
    return [
        {name: rng.normal(0, 1, SHAPE).astype(np.float32) for name in "xu"} for _ in range(count)
    ]


def grid(tensor: str, threshold: float) -> onnx.NodeProto:
    peak = np.array([threshold], np.float32)
    held = Calibration((peak / np.float32(127.5)).astype(np.float32), peak)
    return hz_calibration.make_node(f"{tensor}_HzCalibration", tensor, f"{tensor}_q", held)
