"""Constant folding: nodes without a variable input are computed once, by onnx's own evaluator."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import shape_inference
from onnx.reference import ReferenceEvaluator

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.infer import SMALL
from qtune.hbir.onnx_import.pairs import QUANTIZERS

Array = np.ndarray[Any, Any]

_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")


def fold(model: ir.Model) -> None:
    """Replace what no input decides by initializers, in place, and infer all shapes.

    Shapes are inferred first, so that sizes of static tensors are constants too. Quantize and
    dequantize nodes stay: they say which grid a constant lies on.
    """
    _infer(model)
    for node in list(model.graph):
        if _is_foldable(node):
            _replace(model, node, _evaluate(node))
    _drop_unused(model)
    _infer(model)


def _infer(model: ir.Model) -> None:
    """Types and shapes by onnx's inference with data propagation; big tensors go by type only."""
    proto = ir.to_proto(model)
    hz_calibration.hide(proto)
    for tensor in list(proto.graph.initializer):
        if np.prod(tensor.dims, dtype=np.int64) > SMALL:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            proto.graph.input.append(info)
            proto.graph.initializer.remove(tensor)
    try:
        inferred = shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError) as error:
        raise OnnxImportError(f"the shapes of the model don't fit together: {error}") from None
    infos = {info.name: info for info in (*inferred.graph.value_info, *inferred.graph.output)}
    for node in model.graph:
        for value in node.outputs:
            known = infos.get(value.name or "")
            if known is not None:
                ir.serde.deserialize_value_info_proto(known, value)


def _is_foldable(node: ir.Node) -> bool:
    if node.op_type in (*QUANTIZERS, hz_calibration.OP_TYPE) or node.op_type.startswith(_RANDOM):
        return False
    if node.op_type in ("Shape", "Size"):
        source = node.inputs[0]
        return source is not None and source.shape is not None and source.shape.is_static()
    if any(attr.type == ir.AttributeType.GRAPH for attr in node.attributes.values()):
        return False
    return all(value is None or value.const_value is not None for value in node.inputs)


def _evaluate(node: ir.Node) -> list[Array]:
    feed: dict[str, Array] = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.const_value is not None:
            feed[value.name or ""] = value.const_value.numpy()
        elif value.shape is not None:
            # Shape and Size look at the shape only: a view of one number serves
            feed[value.name or ""] = np.broadcast_to(np.float32(0), tuple(value.shape.numpy()))
    proto = ir.to_proto(node)
    infos = [_info(name, array) for name, array in feed.items()]
    outputs = [onnx.helper.make_empty_tensor_value_info(value.name or "") for value in node.outputs]
    graph = onnx.helper.make_graph([proto], "constant", infos, outputs)
    opset = onnx.helper.make_opsetid("", node.version or _opset(node))
    model = onnx.helper.make_model(graph, opset_imports=[opset])
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, feed)
    except Exception as error:  # the evaluator raises whatever its operators throw
        raise OnnxImportError(
            f"{node.name}: the constant {node.op_type} can't be computed: {error}"
        ) from None
    return [np.asarray(result) for result in results]


def _opset(node: ir.Node) -> int:
    graph = node.graph
    return 21 if graph is None else graph.opset_imports.get("", 21)


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)


def _replace(model: ir.Model, node: ir.Node, results: list[Array]) -> None:
    for value, array in zip(node.outputs, results, strict=True):
        tensor = ir.Tensor(np.array(array, order="C"), name=value.name)
        constant = ir.Value(
            name=value.name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(list(array.shape)),
            const_value=tensor,
        )
        if value.is_graph_output():
            index = model.graph.outputs.index(value)
            model.graph.outputs[index] = constant
        value.replace_all_uses_with(constant)
        value.name = f"{value.name}/folded"
        model.graph.initializers.add(constant)
    model.graph.remove(node, safe=True)


def _drop_unused(model: ir.Model) -> None:
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del model.graph.initializers[name]
