"""Float models written out by hand for the build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Sizes = Sequence[int | str]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sizes],
    outputs: Mapping[str, Sizes],
    constants: Mapping[str, Any],
    opset: int = 17,
) -> onnx.ModelProto:
    """A checked model of float inputs and outputs."""

    def infos(given: Mapping[str, Sizes]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, size)
            for name, size in given.items()
        ]

    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    graph = helper.make_graph(list(nodes), "net", infos(inputs), infos(outputs), tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def weights(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 0.3, shape).astype(np.float32)


def items(*shape: int, count: int = 3) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.normal(0, 1, shape).astype(np.float32) for _ in range(count)]


def classifier(opset: int = 17, batch: int | str = 1) -> onnx.ModelProto:
    """Conv, batch norm, Clip, MaxPool, Conv, Add with the pool, Relu, pooling, Gemm; no names."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w0"], ["c0"], pads=[1] * 4, name="stem"),
        make("BatchNormalization", ["c0", "g", "b", "m", "v"], ["n0"]),
        make("Clip", ["n0", "zero", "six"], ["r0"]),
        make("MaxPool", ["r0"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
        make("Conv", ["p", "w1", "b1"], ["c1"], pads=[1] * 4, name="twin"),
        make("Add", ["c1", "p"], ["a"], name="twin"),
        make("Relu", ["a"], ["r1"]),
        make("GlobalAveragePool", ["r1"], ["gp"]),
        make("Flatten", ["gp"], ["f"]),
        make("Gemm", ["f", "w2", "b2"], ["y"], transB=1, name="head"),
    ]
    constants = {
        "w0": weights(4, 3, 3, 3),
        "g": np.linspace(0.5, 2, 4, dtype=np.float32),
        "b": weights(4, seed=1),
        "m": weights(4, seed=2),
        "v": np.linspace(0.5, 1.5, 4, dtype=np.float32),
        "zero": np.float32(0),
        "six": np.float32(6),
        "w1": weights(4, 4, 3, 3, seed=3),
        "b1": weights(4, seed=4),
        "w2": weights(5, 4, seed=5),
        "b2": weights(5, seed=6),
    }
    return model(nodes, {"x": [batch, 3, 8, 8]}, {"y": [batch, 5]}, constants, opset)
