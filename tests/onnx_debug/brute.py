"""The plain way: a model of its own for each choice of calibration nodes, in one session."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

Array = np.ndarray[Any, Any]

CALIBRATING = ("HzCalibration", "QuantizeLinear", "DequantizeLinear")


def values(
    proto: onnx.ModelProto, on: Collection[str], feed: dict[str, Array], wanted: Collection[str]
) -> dict[str, Array]:
    """``wanted`` with only the calibration nodes ``on``, all others taken out by hand.

    Calibration nodes are HzCalibration, QuantizeLinear and DequantizeLinear, by their own names.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.node[:]
    for node in proto.graph.node:
        is_off = node.op_type in CALIBRATING and node.name not in on
        model.graph.node.append(
            helper.make_node("Identity", node.input[:1], node.output) if is_off else node
        )
    own = {info.name for info in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted if n not in own)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(wanted, session.run(list(wanted), feed), strict=True))


def cosine(a: Array, b: Array) -> float:
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def mse(a: Array, b: Array) -> float:
    return float(np.mean((a.astype(np.float64) - b) ** 2))
