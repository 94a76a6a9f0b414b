"""Models with HzCalibration nodes, written out by hand, and what onnxruntime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration

from .quantized_files import Array, graph_of


def by_onnxruntime(model: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def on_grid(tensor: str, scale: Any, bits: int = 8, axis: int = -1, **how: str) -> onnx.NodeProto:
    scales = np.atleast_1d(np.asarray(scale, np.float32))
    held = Calibration(scales, scales * np.float32(1 << (bits - 1)), bits, axis)
    name = how.get("name", f"{tensor}_HzCalibration")
    return hz_calibration.make_node(name, tensor, how.get("output", f"{tensor}_q"), held)


def calibrated(
    nodes: Sequence[onnx.NodeProto],
    shape: tuple[int, ...],
    constants: Mapping[str, Array],
    result: tuple[int, ...] | None = None,
) -> onnx.ModelProto:
    model = graph_of(list(nodes), shape, constants, result=result)
    hz_calibration.declare(model)
    return model
