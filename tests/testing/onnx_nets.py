"""Small ONNX models; weights and scales of the chain are sums of few powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration

Array = np.ndarray[Any, Any]
WEIGHTS = (1.0, 1.0, 1.5, 0.75, 0.5, 1.5, 0.5)
SHAPE = (2, 1, 8, 8)


def grid(threshold: float) -> Calibration:
    """A threshold that somebody fixed: its scale is ``threshold / 128``."""
    return Calibration(
        np.array([threshold / 128], np.float32), np.array([threshold], np.float32), 8, -1
    )


def chain(thresholds: Mapping[str, float] | None = None, shared: str = "") -> onnx.ModelProto:
    """Seven 1x1 convolutions ``c0`` to ``c6`` of one channel, calibrated; the last one gives ``y``.

    Results have ranges of 4, weights of 2, others by the name of the node. ``shared``: what this
    convolution and the next ones multiply with is the weight of ``c1``.
    """
    ranges = dict(thresholds or {})
    arrays = {f"w{i}": np.full((1, 1, 1, 1), w, np.float32) for i, w in enumerate(WEIGHTS)}
    nodes = [_calibrate("x", 4.0)]
    nodes += [_calibrate(name, 2.0) for name in arrays]
    source = "x_q"
    names = [f"c{i}" for i in range(len(WEIGHTS))]
    for index, name in enumerate(names):
        weight = "w1" if shared and name >= shared else f"w{index}"
        output = "y" if name == names[-1] else f"t{index}"
        nodes.append(helper.make_node("Conv", [source, f"{weight}_q"], [output], name=name))
        if name != names[-1]:
            nodes.append(_calibrate(output, ranges.get(name, 4.0)))
            source = f"{output}_q"
    return _model(nodes, arrays, SHAPE, SHAPE)


def normed() -> onnx.ModelProto:
    """A float model: Conv ``conv``, batch norm ``norm``, Relu ``act``, Conv ``head``."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "w": rng.normal(0, 0.5, (4, 3, 3, 3)).astype(np.float32),
        "scale": np.array([1.0, 2.0, 0.5, 1.5], np.float32),
        "bias": np.array([0.5, -0.5, 0.25, 0.0], np.float32),
        "mean": np.array([0.1, 0.2, -0.1, 0.0], np.float32),
        "var": np.array([1.0, 2.0, 0.5, 1.0], np.float32),
        "v": rng.normal(0, 0.5, (2, 4, 1, 1)).astype(np.float32),
    }
    norm = ["a", "scale", "bias", "mean", "var"]
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("BatchNormalization", norm, ["b"], name="norm"),
        helper.make_node("Relu", ["b"], ["r"], name="act"),
        helper.make_node("Conv", ["r", "v"], ["map"], name="head"),
    ]
    return _model(nodes, arrays, ("N", 3, 6, 6), ("N", 2, 6, 6), "image", "map")


def two_ports() -> onnx.ModelProto:
    """A float model of two inputs and two outputs: ``sum = a @ w + b``, ``product = sum * b``."""
    arrays = {"w": np.eye(4, dtype=np.float32) * 0.5}
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["m"], name="matmul"),
        helper.make_node("Add", ["m", "b"], ["sum"], name="add"),
        helper.make_node("Mul", ["sum", "b"], ["product"], name="mul"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 4)) for n in "ab"]
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 4)) for n in ("sum", "product")
    ]
    return _finished(helper.make_graph(nodes, "two", ports, outputs, _tensors(arrays)))


def images(count: int = 4, size: int = 1) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.normal(0, 1, (size, 3, 6, 6)).astype(np.float32) for _ in range(count)]


def write_project(folder: Path) -> None:
    """model.onnx with calibration_data/ and holdout/, and what is made of it."""
    onnx.save(normed(), folder / "model.onnx")
    for name, items in (("calibration_data", images()), ("holdout", images(2))):
        place = folder / name / "image"
        place.mkdir(parents=True)
        for index, item in enumerate(items):
            np.save(place / f"{index}.npy", item)


def _calibrate(tensor: str, threshold: float) -> onnx.NodeProto:
    name = f"{tensor}_HzCalibration"
    return hz_calibration.make_node(name, tensor, f"{tensor}_q", grid(threshold))


def _model(
    nodes: list[onnx.NodeProto],
    arrays: Mapping[str, Array],
    taken: tuple[Any, ...],
    given: tuple[Any, ...],
    source: str = "x",
    result: str = "y",
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, taken)],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, given)],
        _tensors(arrays),
    )
    return _finished(graph)


def _tensors(arrays: Mapping[str, Array]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def _finished(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    hz_calibration.declare(model)
    return model
