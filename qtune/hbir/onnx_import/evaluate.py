"""One node on constants, by onnx's own evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.onnx_import.pairs import QUANTIZERS

Array = np.ndarray[Any, Any]
DataOf = Callable[[ir.Value], Array | None]

_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")
SIZES = ("Shape", "Size")
"""Operators that look at the shape of their operand only."""


def held_data(value: ir.Value) -> Array | None:
    """The array of an initializer."""
    return None if value.const_value is None else value.const_value.numpy()


def is_decided(node: ir.Node, data_of: DataOf = held_data) -> bool:
    """Whether constants decide what ``node`` gives. Quantize nodes are never replaced."""
    if node.op_type in (*QUANTIZERS, hz_calibration.OP_TYPE) or node.op_type.startswith(_RANDOM):
        return False
    if node.op_type in SIZES:
        source = node.inputs[0]
        return source is not None and source.shape is not None and source.shape.is_static()
    if any(attr.type == ir.AttributeType.GRAPH for attr in node.attributes.values()):
        return False
    return all(value is None or data_of(value) is not None for value in node.inputs)


def evaluated(node: ir.Node, opset: int, data_of: DataOf = held_data) -> list[Array]:
    """The results of a node that :func:`is_decided`."""
    feed: dict[str, Array] = {}
    for value in node.inputs:
        data = None if value is None else data_of(value)
        if value is not None and data is not None:
            feed[value.name or ""] = data
        elif value is not None and value.shape is not None:
            # a view of one number serves where only the shape is looked at
            feed[value.name or ""] = np.broadcast_to(np.float32(0), tuple(value.shape.numpy()))
    return run_node(ir.to_proto(node), node.version or opset, feed)


def run_node(proto: onnx.NodeProto, opset: int, feed: Mapping[str, Array]) -> list[Array]:
    """The results of one node on ``feed``, an array for each of its inputs."""
    infos = [_info(name, array) for name, array in feed.items()]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output]
    graph = onnx.helper.make_graph([proto], "constant", infos, outputs)
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, dict(feed))
    except Exception as error:  # the evaluator raises whatever its operators throw
        raise OnnxImportError(
            f"{proto.name}: the constant {proto.op_type} can't be computed: {error}"
        ) from None
    return [np.asarray(result) for result in results]


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)
