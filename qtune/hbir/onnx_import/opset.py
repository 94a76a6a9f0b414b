"""Any opset brought to ours, names of nodes and tensors kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx
from onnx import defs, helper, version_converter

from qtune.errors import OnnxImportError
from qtune.hbir.domain import IR_VERSION, OPSET
from qtune.hbir.onnx_import.contrib import with_standard_nodes
from qtune.hbir.onnx_import.graph_view import GraphView
from qtune.hbir.onnx_import.inline import is_function, with_definitions
from qtune.hbir.onnx_import.names import free_name
from qtune.hbir.onnx_import.pairs import QUANTIZERS

STANDARD = ("", "ai.onnx")
OLDEST = 7
"""The oldest opset that onnx's converter takes."""


def at_our_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` in the opset that HBIR uses; operators of other domains stay as they are.

    Those of onnxruntime's domain that stand for standard ones become these.
    """
    _name_standard_domain(proto)
    version = version_of(proto)
    if version < OPSET:
        proto = _converted(proto, version)
    elif version > OPSET:
        proto = _with_definitions(proto, version)
        _check_newer(proto, version)
        for entry in proto.opset_import:
            if not entry.domain:
                entry.version = OPSET
    proto.ir_version = min(proto.ir_version, IR_VERSION)
    return with_standard_nodes(proto)


def check_opset(proto: onnx.ModelProto, where: str) -> None:
    """Raise ``OnnxImportError`` for an opset that nothing here can read."""
    version, newest = version_of(proto), defs.onnx_opset_version()
    if not OLDEST <= version <= newest:
        raise OnnxImportError(
            f"{where} is of opset {version}; taken are opsets {OLDEST} to {newest}. Export it with "
            f"opset {OPSET}"
        )


def version_of(proto: onnx.ModelProto) -> int:
    """The opset of the standard operators of ``proto``."""
    return next((o.version for o in proto.opset_import if o.domain in STANDARD), OPSET)


def _name_standard_domain(proto: onnx.ModelProto) -> None:
    """``ai.onnx`` is another name of the standard domain, which onnx's converter does not know."""
    for item in (*proto.opset_import, *proto.graph.node):
        if item.domain == STANDARD[1]:
            item.domain = ""


def _converted(proto: onnx.ModelProto, version: int) -> onnx.ModelProto:
    hidden = _hide(proto)
    resized = _old_resizes(proto, version)
    flattened = _old_hardmaxes(proto, version)
    infos = {info.name for info in proto.graph.value_info}
    try:
        result = version_converter.convert_version(proto, OPSET)
    except Exception as error:  # the converter raises whatever its C++ part throws
        raise OnnxImportError(
            f"the model is of opset {version} and can't be brought to opset {OPSET}: {error}. "
            f"Export it with opset {OPSET}"
        ) from None
    _show(result, hidden, infos)
    _state_positions(result, resized)
    _flatten(result, flattened)
    _take_over(result, proto)
    return result


def _hide(proto: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Put Identity in place of nodes that the converter does not know; what they were, by output.

    The converter only looks at an operator's name to find what has to change. It knows quantize
    nodes, but not every element type of theirs.
    """
    hidden: dict[str, onnx.NodeProto] = {}
    for node in proto.graph.node:
        if not node.domain and node.op_type not in QUANTIZERS:
            continue
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        hidden[node.output[0]] = kept
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
    return hidden


def _show(
    proto: onnx.ModelProto, hidden: dict[str, onnx.NodeProto], infos: Collection[str]
) -> None:
    for node in proto.graph.node:
        kept = hidden.get(node.output[0]) if node.output else None
        if kept is not None:
            node.CopyFrom(kept)
    # types that the converter inferred through hidden nodes are wrong
    known = [info for info in proto.graph.value_info if info.name in infos]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(known)


def _old_resizes(proto: onnx.ModelProto, version: int) -> set[str]:
    """Outputs of nodes that resize by the rule of opsets 7 to 10, which had but one."""
    kinds = ("Upsample", "Resize") if version <= 10 else ("Upsample",)
    return {node.output[0] for node in proto.graph.node if node.op_type in kinds}


def _state_positions(proto: onnx.ModelProto, resized: Collection[str]) -> None:
    """State the old rule, ``position = index / scale``; left out, it now means another one.

    onnx's converter does not: its result would be resized by half_pixel. A nearest element is the
    one before the position, behind it where the map shrinks (onnxruntime and onnx's own cases).
    """
    nodes = [n for n in proto.graph.node if n.op_type == "Resize" and n.output[0] in resized]
    view = GraphView(proto.graph) if nodes else None
    for node in nodes:
        scales = view.array(node.input[2]) if view and len(node.input) > 2 else None
        shrinks = scales is not None and bool((scales < 1).any())
        nearest = "ceil" if shrinks else "floor"
        stated = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
        known = {item.name for item in node.attribute}
        node.attribute.extend(
            helper.make_attribute(key, text) for key, text in stated.items() if key not in known
        )


def _old_hardmaxes(proto: onnx.ModelProto, version: int) -> dict[str, int]:
    """Outputs of Hardmax nodes of opsets before 13, with their axis; the default was 1."""
    if version >= 13:
        return {}
    nodes = [node for node in proto.graph.node if node.op_type == "Hardmax"]
    return {n.output[0]: next((a.i for a in n.attribute if a.name == "axis"), 1) for n in nodes}


def _flatten(proto: onnx.ModelProto, axes: Mapping[str, int]) -> None:
    """Before opset 13 all axes from ``axis`` on were one; onnx's converter leaves Hardmax alone."""
    nodes = list(proto.graph.node)
    taken = {name for node in nodes for name in (node.name, *node.input, *node.output)}
    for node in nodes:
        if not node.output or node.output[0] not in axes:
            continue
        x, y = node.input[0], node.output[0]
        parts = {key: free_name(f"{y}/{key}", taken) for key in ("shape", "flat", "marked")}
        made = [
            helper.make_node("Shape", [x], [parts["shape"]], parts["shape"]),
            helper.make_node("Flatten", [x], [parts["flat"]], parts["flat"], axis=axes[y]),
            helper.make_node("Hardmax", [parts["flat"]], [parts["marked"]], parts["marked"]),
            helper.make_node("Reshape", [parts["marked"], parts["shape"]], [y], node.name),
        ]
        place = next(i for i, item in enumerate(proto.graph.node) if item.output[:1] == [y])
        del proto.graph.node[place]
        for offset, item in enumerate(made):
            proto.graph.node.insert(place + offset, item)


def _take_over(result: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """What the converter drops: other domains, functions and notes of the model."""
    known = {entry.domain for entry in result.opset_import}
    result.opset_import.extend(e for e in source.opset_import if e.domain not in (*known, ""))
    if not result.functions:
        result.functions.extend(source.functions)
    if not result.metadata_props:
        result.metadata_props.extend(source.metadata_props)
    result.ir_version = IR_VERSION


def _with_definitions(proto: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Operators that ours lacks (Attention, RMSNormalization, ...) as the standard defines them."""
    while True:
        newer = {n.op_type for n in proto.graph.node if not _is_old_form(n, version)}
        defined = [name for name in newer if is_function(name, version)]
        if not defined:
            return proto
        proto = with_definitions(proto, defined)


def _check_newer(proto: onnx.ModelProto, version: int) -> None:
    """A newer opset is taken where its nodes have a form that they could have in ours."""
    changed = sorted(
        {f"{n.op_type} ({n.name})" for n in proto.graph.node if not _is_old_form(n, version)}
    )
    if changed:
        raise OnnxImportError(
            f"opset {version} defines {', '.join(changed)} otherwise than opset {OPSET}; export "
            f"the model with opset {OPSET}"
        )


def _is_old_form(node: onnx.NodeProto, version: int) -> bool:
    if node.domain:
        return True
    if not (defs.has(node.op_type) and defs.has(node.op_type, OPSET)):
        return False
    new, old = (defs.get_schema(node.op_type, v, "") for v in (version, OPSET))
    inputs = [item.name for item in old.inputs]
    same_inputs = [item.name for item in new.inputs][: len(inputs)] == inputs
    fits = len(node.input) <= old.max_input and len(node.output) <= old.max_output
    return same_inputs and fits and {item.name for item in node.attribute} <= set(old.attributes)
