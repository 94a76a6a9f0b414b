"""Functions replaced by their bodies: the model's own, and those that the ONNX standard defines."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
from onnx import defs, helper, inliner

from qtune.errors import OnnxImportError
from qtune.hbir.domain import OPSET

_WHOLE = ("Range",)
"""Operators whose definition is a loop: constants decide them, or they have no form."""


def inlined(proto: onnx.ModelProto, keep: Collection[str]) -> onnx.ModelProto:
    """``proto`` with functions replaced by their bodies, but for the standard operators ``keep``.

    Functions are the model's own and those that the ONNX standard defines by other operators.
    """
    return _inlined(proto, sorted({*keep, *_WHOLE}), exclude=True)


def with_definitions(proto: onnx.ModelProto, operators: Collection[str]) -> onnx.ModelProto:
    """``proto`` with these standard operators replaced by their definitions."""
    return _inlined(proto, sorted(operators), exclude=False)


def _inlined(proto: onnx.ModelProto, names: Collection[str], *, exclude: bool) -> onnx.ModelProto:
    ids = [("", name) for name in names]
    _declare_initializers(proto)
    _state_defaults(proto)
    try:
        return inliner.inline_selected_functions(
            proto, ids, exclude=exclude, inline_schema_functions=True
        )
    except RuntimeError as error:  # types that onnx can't tell inside of a definition
        raise OnnxImportError(
            f"an operator that is defined by others can't be replaced by its definition: {error}. "
            "State the types of all tensors (onnx.shape_inference) and all attributes, or export "
            "the model with these operators"
        ) from None


def _declare_initializers(proto: onnx.ModelProto) -> None:
    """State the types of initializers: the inliner chooses function bodies by types it is told."""
    graph = proto.graph
    known = {info.name for info in (*graph.input, *graph.output, *graph.value_info)}
    for tensor in graph.initializer:
        if tensor.name not in known:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.value_info.append(info)


def _state_defaults(proto: onnx.ModelProto) -> None:
    """State attributes that are left out: onnx's inliner knows no default of some definitions."""
    version = next((o.version for o in proto.opset_import if not o.domain), OPSET)
    for node in proto.graph.node:
        if node.domain or not is_function(node.op_type, version):
            continue
        stated = {item.name for item in node.attribute}
        known = defs.get_schema(node.op_type, version, "").attributes
        node.attribute.extend(
            item.default_value
            for name, item in known.items()
            if name not in stated and item.default_value.name
        )


def is_function(op_type: str, version: int) -> bool:
    """Whether the standard defines an operator of opset ``version`` by other operators."""
    if not defs.has(op_type, version):
        return False
    schema: Any = defs.get_schema(op_type, version, "")
    return bool(schema.has_function or schema.has_context_dependent_function)
