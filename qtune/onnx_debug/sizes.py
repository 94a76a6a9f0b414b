"""The sizes of all tensors of a calibrated model for one item, without running it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from qtune.onnx_debug.segments import Shape, Wiring

Array = np.ndarray[Any, Any]

_MOST_ELEMENTS = 128  # of a constant whose values may state sizes


def inferred_sizes(wiring: Wiring, feed: Mapping[str, Array]) -> dict[str, Shape]:
    """Sizes by tensor, of inputs, constants and all that onnx can infer from them.

    An output of a calibration node has those of what it reads.
    """
    proto = _skeleton(wiring, feed)
    known = {name: array.shape for name, array in feed.items()}
    known |= {name: tuple(tensor.dims) for name, tensor in wiring.constants.items()}
    try:
        graph = shape_inference.infer_shapes(proto, data_prop=True).graph
    except (shape_inference.InferenceError, RuntimeError):  # running the model tells what is wrong
        return known
    for info in (*graph.value_info, *graph.output):
        kind = info.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            known[info.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return known


def _skeleton(wiring: Wiring, feed: Mapping[str, Array]) -> onnx.ModelProto:
    """The ordinary nodes; large constants and float forms of stored codes are inputs."""
    nodes, stored = [], {}
    for node in wiring.nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for place, name in enumerate(node.input):
            codes = next((item for item in wiring.chain(name) if item.is_stored), None)
            if codes is None:
                copy.input[place] = wiring.root(name)
            else:
                copy.input[place] = codes.output
                dims = wiring.constants[wiring.root(name)].dims
                stored[codes.output] = _info(codes.output, TensorProto.FLOAT, dims)
        nodes.append(copy)
    inputs = [
        _info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feed.items()
    ]
    few = {n: t for n, t in wiring.constants.items() if math.prod(t.dims) <= _MOST_ELEMENTS}
    inputs += [_info(n, t.data_type, t.dims) for n, t in wiring.constants.items() if n not in few]
    small = [numpy_helper.from_array(wiring.array(name), name) for name in few]
    outputs = [onnx.ValueInfoProto(name=name) for name in wiring.outputs if name in wiring.maker]
    source = wiring.model.proto
    graph = helper.make_graph(nodes, "sizes", [*inputs, *stored.values()], outputs, small)
    return helper.make_model(
        graph,
        opset_imports=source.opset_import,
        functions=source.functions,
        ir_version=source.ir_version,
    )


def _info(name: str, kind: int, dims: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, tuple(dims))
