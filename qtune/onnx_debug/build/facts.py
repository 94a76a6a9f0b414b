"""What the registry says of each node of a model: does it compute on integers, and on which inputs.

The model is imported in float; each of its nodes becomes operators of HBIR, which belong to
operators of the registry. No list of operators lives here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
import onnx_ir as ir
from onnx import helper

from qtune.dtype import QuantDType
from qtune.hbir.builder import META_OP, META_TYPE
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug.build.decompose import Part
from qtune.ops import registry
from qtune.ops.spec import FuseRole, OpSpec, Rule


class Kind(enum.Enum):
    """How a node takes part."""

    INTEGER = "integer"
    """Its result gets a grid of its own."""
    PASSING = "passing"
    """Its result keeps the grid of its first input."""
    FLOAT = "float"
    """It runs in float, for the reason that is given."""
    JOINED = "joined"
    """The one operator that it feeds computes it along: its result does not exist on the march."""
    PLAIN = "plain"
    """It makes no float numbers (shapes, indices, masks)."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node of the optimized model.

    ``inputs``: index -> role of the inputs that are brought to a grid (``weight``, ``bias`` and
    other operands by the registry's names). ``weight``: index of the weight, ``axis`` its axis of
    output channels; ``None`` without. ``wants``: index -> dtype that the operand needs. ``clamps``:
    it only bounds its input (Relu, Clip), and can do that in the operator before it.
    ``is_bias``: it adds a constant that the matmul before it takes as its bias. ``joins``: the node
    that computes a ``JOINED`` one along. ``part``: what is known of a part of a composed operator.
    """

    name: str
    op_type: str
    kind: Kind
    reason: str = ""
    inputs: Mapping[int, str] = field(default_factory=dict)
    weight: int | None = None
    axis: int = -1
    wants: Mapping[int, QuantDType] = field(default_factory=dict)
    fuse: FuseRole | None = None
    is_gemm: bool = False
    clamps: bool = False
    is_bias: bool = False
    joins: str = ""
    part: Part | None = None


def facts_of(
    proto: onnx.ModelProto, parts: Mapping[str, Part] | None = None
) -> dict[str, NodeFacts]:
    """Facts of every node by its name; ``parts``: those that are parts of composed operators.

    Raises ``OnnxImportError`` listing what has no form here.
    """
    module = import_onnx(proto)
    made: dict[str, list[ir.Node]] = {}
    for node in module.model.graph:
        made.setdefault(node.metadata_props.get(META_OP, ""), []).append(node)
    floats = float_tensors(proto)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    found = {
        node.name: _facts(node, made.get(node.name, []), floats, constants)
        for node in proto.graph.node
    }
    found |= _joined(proto.graph, found, made)
    found |= {name: replace(found[name], is_bias=True) for name in _biases(proto.graph, found)}
    for name, part in (parts or {}).items():
        found[name] = replace(found[name], part=part)
    return found


def float_tensors(proto: onnx.ModelProto) -> set[str]:
    """Names of all float32 tensors."""
    graph = proto.graph
    infos = (*graph.input, *graph.output, *graph.value_info)
    kinds = {info.name: info.type.tensor_type.elem_type for info in infos}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name for name, kind in kinds.items() if kind == onnx.TensorProto.FLOAT}


def _facts(
    node: onnx.NodeProto,
    made: Sequence[ir.Node],
    floats: set[str],
    constants: Mapping[str, onnx.TensorProto],
) -> NodeFacts:
    if floats.isdisjoint(node.output):
        return NodeFacts(node.name, node.op_type, Kind.PLAIN)
    kernels = [registry.kernel(item.domain, item.op_type) for item in made]
    if not made or any(kernel is None or kernel.convert is None for kernel in kernels):
        reason = f"{node.op_type} has no integer rule"
        return NodeFacts(node.name, node.op_type, Kind.FLOAT, reason)
    specs = [
        registry.spec(i.metadata_props[META_TYPE]) for i in made if META_TYPE in i.metadata_props
    ]
    owners = [registry.kernel_owners().get((item.domain, item.op_type)) for item in made]
    found = [owner for owner in owners if owner is not None] or specs
    own = [spec for spec in found if spec.rule is not Rule.INPUT_SCALE]
    if len(own) > 1:
        names = ", ".join(dict.fromkeys(spec.name for spec in found))
        reason = f"it becomes several operators ({names}), whose inner results have no scale"
        return NodeFacts(node.name, node.op_type, Kind.FLOAT, reason)
    if not own:
        return _passing(node, found, floats)
    return _integer(node, own[0], floats, constants)


def _passing(node: onnx.NodeProto, found: Sequence[OpSpec], floats: set[str]) -> NodeFacts:
    if not found or node.input[0] not in floats:
        reason = f"{node.op_type} has no integer rule"
        if node.input and node.input[0] not in floats:
            reason = f"{node.op_type} makes floats of integers or masks, which have no scale"
        return NodeFacts(node.name, node.op_type, Kind.FLOAT, reason)
    entry = found[0]
    clamps = entry.family == "activation"
    inputs = _operands(node, entry, floats)
    return NodeFacts(
        node.name,
        node.op_type,
        Kind.PASSING,
        inputs=inputs,
        wants=_wants(entry, inputs),
        fuse=FuseRole.RELU if clamps else None,
        clamps=clamps,
    )


def _integer(
    node: onnx.NodeProto,
    entry: OpSpec,
    floats: set[str],
    constants: Mapping[str, onnx.TensorProto],
) -> NodeFacts:
    inputs = _operands(node, entry, floats)
    weight, axis = _weight(node, entry, constants)
    return NodeFacts(
        node.name,
        node.op_type,
        Kind.INTEGER,
        inputs=inputs,
        weight=weight,
        axis=axis,
        wants=_wants(entry, inputs),
        fuse=_fuse(node, entry, weight),
        is_gemm=entry.family == "gemm",
    )


def _fuse(node: onnx.NodeProto, entry: OpSpec, weight: int | None) -> FuseRole | None:
    """The part in fused groups, for operators that HBIR holds under ONNX's own name."""
    if weight is not None and entry.family == "gemm":
        return FuseRole.GEMM
    return entry.fuse if ("", node.op_type) in registry.kernel_owners() else None


def _operands(node: onnx.NodeProto, entry: OpSpec, floats: set[str]) -> dict[int, str]:
    """Inputs that are numbers with a scale: operands by role but biases and a norm's parameters."""
    roles = list(entry.roles)
    if roles[-1].startswith("*"):
        roles[-1:] = [roles[-1][1:]] * max(0, len(node.input) - len(roles) + 1)
    if entry.family == "norm":
        roles = roles[:1]
    pairs = zip(node.input, roles, strict=False)
    return {
        index: role for index, (name, role) in enumerate(pairs) if role != "bias" and name in floats
    }


def _wants(entry: OpSpec, inputs: Mapping[int, str]) -> dict[int, QuantDType]:
    return {index: entry.wants[role] for index, role in inputs.items() if role in entry.wants}


def _weight(
    node: onnx.NodeProto, entry: OpSpec, constants: Mapping[str, onnx.TensorProto]
) -> tuple[int | None, int]:
    """Index and channel axis of the constant weight of a GEMM, in ONNX's layout."""
    index = entry.roles.index(entry.weight_role) if entry.weight_role in entry.roles else 1
    if entry.family != "gemm" and entry.weight_role is not None:
        return _slopes(node, index, constants)
    if entry.family != "gemm" or index >= len(node.input) or node.input[index] not in constants:
        return None, -1
    rank = len(constants[node.input[index]].dims)
    attrs = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if entry.weight_role is None:  # a matmul: with a constant matrix it is a linear layer
        return (index, 1) if rank == 2 else (None, -1)
    if node.op_type == "Gemm":
        return index, 0 if attrs.get("transB", 0) else 1
    groups = (
        1
        if entry.weight_groups is None
        else entry.weight_groups({"groups": int(attrs.get("group", 1))})
    )
    axis = 0 if entry.weight_axis is None else entry.weight_axis({"groups": groups})
    return index, axis if groups == 1 else -1


def _slopes(
    node: onnx.NodeProto, index: int, constants: Mapping[str, onnx.TensorProto]
) -> tuple[int | None, int]:
    """Index and axis of a constant with one number per channel, or one for all (axis -1)."""
    if index >= len(node.input) or node.input[index] not in constants:
        return None, -1
    dims = constants[node.input[index]].dims
    wide = [axis for axis, size in enumerate(dims) if size > 1]
    return index, wide[0] if len(wide) == 1 else -1


def _joined(
    graph: onnx.GraphProto, found: Mapping[str, NodeFacts], made: Mapping[str, Sequence[ir.Node]]
) -> dict[str, NodeFacts]:
    """Nodes that the import put into the one behind them: ``1 / sqrt(x + eps)`` is one table."""
    numbers = {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) == 1}
    outputs = {info.name for info in graph.output}
    users = _users(graph)
    owners = registry.kernel_owners()
    joins: dict[str, str] = {}
    for node in reversed(graph.node):
        owner, readers = owners.get(("", node.op_type)), users.get(node.output[0], [])
        moves = owner is None or owner.rule is Rule.INPUT_SCALE
        if moves or made.get(node.name) or len(readers) != 1 or node.output[0] in outputs:
            continue
        reader = readers[0]
        kinds = {item.op_type for item in made.get(reader.name, ())}
        if reader.name in joins or (kinds and reader.op_type not in kinds):
            joins[node.name] = joins.get(reader.name, reader.name)
    return {
        node.name: NodeFacts(
            node.name,
            node.op_type,
            Kind.JOINED,
            inputs={i: "input" for i, name in enumerate(node.input) if name not in numbers},
            joins=joins[node.name],
        )
        for node in graph.node
        if node.name in joins and found[node.name].kind is not Kind.PLAIN
    }


def _biases(graph: onnx.GraphProto, found: Mapping[str, NodeFacts]) -> list[str]:
    """Additions of one number per column to what a matmul with a constant matrix makes for them."""
    sizes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    outputs = {info.name for info in graph.output}
    users = _users(graph)
    names = []
    for node in graph.node:
        if node.op_type != "Add" or node.domain:
            continue
        for product, addend in (tuple(node.input), tuple(node.input[::-1])):
            maker = makers.get(product)
            if maker is None or maker.op_type != "MatMul" or addend not in sizes:
                continue
            index, dims = found[maker.name].weight, sizes[addend]
            alone = len(users[product]) == 1 and product not in outputs
            columns = sizes[maker.input[index]][-1] if index == 1 else 0
            if alone and dims and dims[-1] == columns == math.prod(dims):
                names.append(node.name)
    return names


def _users(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            found.setdefault(name, []).append(node)
    return found
