"""ResNet-18 as float ONNX and as a calibrated model, random weights; for the ONNX benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration

Array = np.ndarray[Any, Any]
_OPSET, _IR = 21, 10


class _Builder:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, shape: tuple[int, ...], std: float) -> str:
        name = f"w{len(self.constants)}"
        array = self.rng.normal(0, std, shape).astype(np.float32)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, inputs: list[str], **attrs: Any) -> str:
        index = len(self.nodes)
        self.nodes.append(helper.make_node(kind, inputs, [f"t{index}"], f"{kind}_{index}", **attrs))
        return f"t{index}"

    def conv(self, x: str, c_in: int, c_out: int, kernel: int, stride: int = 1) -> str:
        std = (2 / (c_in * kernel * kernel)) ** 0.5
        weight, bias = (
            self.constant((c_out, c_in, kernel, kernel), std),
            self.constant((c_out,), 0.1),
        )
        pads, strides = [kernel // 2] * 4, [stride] * 2
        return self.op("Conv", [x, weight, bias], pads=pads, strides=strides)


def resnet18(size: int = 224, width: int = 64) -> onnx.ModelProto:
    """The float model; ``width`` channels in the first stage."""
    net = _Builder()
    x = net.op("Relu", [net.conv("x", 3, width, 7, 2)])
    x = net.op("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    c_in = width
    for stage in range(4):
        c_out = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = net.op("Relu", [net.conv(x, c_in, c_out, 3, stride)])
            y = net.conv(y, c_out, c_out, 3)
            if stride > 1:
                x = net.conv(x, c_in, c_out, 1, stride)
            x = net.op("Relu", [net.op("Add", [y, x])])
            c_in = c_out
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x])])
    inputs = [x, net.constant((c_in, 1000), 0.05), net.constant((1000,), 0.1)]
    net.nodes.append(helper.make_node("Gemm", inputs, ["y"], "Gemm_last"))
    return _model(net.nodes, net.constants, size)


def calibrated(proto: onnx.ModelProto, item: Array) -> onnx.ModelProto:
    """With a calibration node at every input of each Conv, Add and Gemm; absmax of ``item``."""
    weights = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    known = dict(weights) | {"x": item} | _tensors(proto, item)
    done: dict[str, str] = {}
    nodes = []
    for node in proto.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        places = range(2) if node.op_type in ("Conv", "Add", "Gemm") else ()
        for place in places:
            name = node.input[place]
            if name not in done:
                done[name] = f"{name}_calibrated"
                nodes.append(_calibration(name, known[name], name in weights))
            copy.input[place] = done[name]
        nodes.append(copy)
    size = proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    made = _model(nodes, list(proto.graph.initializer), size)
    hz_calibration.declare(made)
    return made


def item(size: int = 224, seed: int = 0) -> Array:
    """One image."""
    return np.random.default_rng(seed).normal(0, 1, (1, 3, size, size)).astype(np.float32)


def _calibration(name: str, array: Array, is_weight: bool) -> onnx.NodeProto:
    axes = tuple(range(1, array.ndim)) if is_weight and array.ndim == 4 else None
    peaks = np.atleast_1d(np.abs(array).max(axis=axes)).astype(np.float32)
    held = Calibration(peaks / np.float32(127.5), peaks, 8, 0 if axes else -1)
    return hz_calibration.make_node(f"{name}_HzCalibration", name, f"{name}_calibrated", held)


def _tensors(proto: onnx.ModelProto, item: Array) -> dict[str, Array]:
    opened = onnx.ModelProto()
    opened.CopyFrom(proto)
    names = [name for node in proto.graph.node for name in node.output]
    del opened.graph.output[:]
    opened.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(opened.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, {"x": item}), strict=True))


def _model(
    nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], size: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "resnet18",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, size, size))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 1000))],
        constants,
    )
    opset = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opset, ir_version=_IR)
