"""Constant folding: nodes without a variable input are computed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import shape_inference

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.domain import OPSET
from qtune.hbir.infer import SMALL
from qtune.hbir.onnx_import.branches import take_branches
from qtune.hbir.onnx_import.evaluate import evaluated, is_decided

Array = np.ndarray[Any, Any]


def fold(model: ir.Model) -> None:
    """Replace what no input decides by initializers, in place, and infer all shapes.

    Shapes are inferred first, so that sizes of static tensors are constants too; and again while
    anything changes, since a folded size or a taken branch may decide the shapes behind it.
    Quantize and dequantize nodes stay: they say which grid a constant lies on.
    """
    changed = True
    while changed:
        _infer(model)
        changed = take_branches(model)
        for node in list(model.graph):
            if is_decided(node):
                _replace(model, node, evaluated(node, model.graph.opset_imports.get("", OPSET)))
                changed = True
    _drop_unused(model)


def _infer(model: ir.Model) -> None:
    """Types and shapes by onnx's inference with data propagation; big tensors go by type only."""
    proto = ir.to_proto(model)
    hz_calibration.hide(proto)
    _hide_norms(proto)
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


def _hide_norms(proto: onnx.ModelProto) -> None:
    """Put Identity in place of group norms: onnx infers no shape of theirs."""
    for node in proto.graph.node:
        if node.op_type == "GroupNormalization" and not node.domain:
            node.op_type = "Identity"
            del node.attribute[:]
            del node.input[1:]


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
