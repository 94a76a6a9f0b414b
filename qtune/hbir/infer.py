"""Types and shapes of every value of an HBIR model, inferred by onnx through function bodies."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import shape_inference

from qtune.errors import HbirError

SMALL = 4096
"""Initializers of more elements than this are passed to the inference by type only."""


def infer_types(model: ir.Model) -> None:
    """Set type and shape of every value of ``model``; metadata and names stay.

    Raises ``HbirError`` with onnx's own words where the graph is inconsistent.
    """
    inferred = _inferred(_light_proto(model))
    infos = {info.name: info for info in inferred.graph.value_info}
    infos.update({info.name: info for info in inferred.graph.output})
    for node in model.graph:
        for value in node.outputs:
            _set_type(value, infos.get(value.name or ""))


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with types. Sizes that the graph computes are followed.

    onnx follows them through every vector, whatever its dtype, and takes a column times a row of
    numbers for a wrong calculation with sizes. Where it complains, the graph is checked without
    that; if it is consistent, the values that onnx can't follow stay unknown as sizes.
    """
    try:
        return shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError):
        _check(proto)
    return shape_inference.infer_shapes(proto, strict_mode=False, data_prop=True)


def _check(proto: onnx.ModelProto) -> None:
    try:
        shape_inference.infer_shapes(proto, strict_mode=True, data_prop=False)
    except (shape_inference.InferenceError, RuntimeError) as error:
        raise HbirError(
            f"the graph {proto.graph.name!r} is inconsistent: {error}. Check the lowering of the "
            "named node against the operator's schema"
        ) from None


def _light_proto(model: ir.Model) -> onnx.ModelProto:
    graph = model.graph
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.name = graph.name or "forward"
    for value in graph.inputs:
        ir.serde.serialize_value_into(proto.graph.input.add(), value)
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.size <= SMALL:
            tensor.name = value.name
            ir.serde.serialize_tensor_into(proto.graph.initializer.add(), tensor)
        else:
            ir.serde.serialize_value_into(proto.graph.input.add(), value)
    for node in graph:
        ir.serde.serialize_node_into(proto.graph.node.add(), node)
    for value in graph.outputs:
        proto.graph.output.add(name=value.name or "")
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    return proto


def _set_type(value: ir.Value, info: onnx.ValueInfoProto | None) -> None:
    if info is None or not info.type.HasField("tensor_type"):
        return
    tensor_type = info.type.tensor_type
    if tensor_type.elem_type:
        value.type = ir.TensorType(ir.DataType(tensor_type.elem_type))
    if tensor_type.HasField("shape"):
        dims = [
            dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
            for dim in tensor_type.shape.dim
        ]
        value.shape = ir.Shape(dims)
