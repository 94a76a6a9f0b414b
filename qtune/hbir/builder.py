"""Builds HBIR graphs node by node: the ``Builder`` that operators are handed.

Names: a node is called ``<operator>/<suffix or op_type>``, its values likewise, an initializer
``<operator>.<suffix>``; a number is appended where the name is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qtune.errors import HbirError
from qtune.hbir.domain import DOMAIN, DOMAIN_VERSION, IR_VERSION, OPSET, attribute_types
from qtune.hbir.domain import functions_for as _functions_for
from qtune.hbir.infer import infer_types
from qtune.hbir.naming import unique_name

META_OP = "qtune.op"
META_GROUP = "qtune.group"
META_RESULT = "qtune.result"
META_SCALE = "qtune.scale"
META_DTYPE = "qtune.dtype"
META_RANGE = "qtune.range"
META_TYPE = "qtune.type"
META_ATTRS = "qtune.attrs"
META_SHAPES = "qtune.shapes"
META_FLOPS = "qtune.flops"
META_SOURCE = "qtune.source"
META_REASON = "qtune.float_reason"
META_MEMBERS = "qtune.members"
OPERATOR_FACTS = (META_TYPE, META_ATTRS, META_SHAPES, META_FLOPS)
"""Kept on the first node of an operator: registry name, canonical attrs, shapes, flops."""
META_SCHEMA = "qtune.schema"
META_STAGE = "qtune.stage"
META_MARCH = "qtune.march"
META_BATCH = "qtune.batch"
META_IMPORTED = "qtune.imported"
META_ZERO_POINT = "qtune.zero_point"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """The operator that nodes are emitted for, and the name of its fused group."""

    op: str
    group: str


class GraphBuilder:
    """A graph under construction; implements ``qtune.ops.kernel.Builder``."""

    def __init__(self, name: str = "forward") -> None:
        self.graph = ir.Graph(
            [], [], nodes=[], name=name, opset_imports={"": OPSET, DOMAIN: DOMAIN_VERSION}
        )
        self._taken: set[str] = set()
        self._origin = Origin("", "")

    @property
    def origin(self) -> Origin:
        """The operator that nodes are emitted for now."""
        return self._origin

    @contextmanager
    def emitting_for(self, op: str, group: str = "") -> Iterator[None]:
        """Within the block, nodes belong to the operator ``op`` of the fused group ``group``."""
        before = self._origin
        self._origin = Origin(op, group or op)
        try:
            yield
        finally:
            self._origin = before

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        """Append a graph input."""
        value = ir.Value(
            name=self._unique(name), type=ir.TensorType(dtype), shape=ir.Shape(list(shape))
        )
        self.graph.inputs.append(value)
        return value

    def constant(self, array: Array, suffix: str = "") -> ir.Value:
        """Return an initializer holding a copy of ``array``."""
        name = self._unique(f"{self._origin.op or 'graph'}.{suffix or 'const'}")
        value = constant_value(name, np.array(array, order="C", copy=True))
        self.graph.initializers.add(value)
        return value

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        suffix: str = "",
    ) -> Any:
        """Append a node; return its value, or a tuple of values where ``outputs > 1``."""
        base = f"{self._origin.op or 'graph'}/{suffix or op_type}"
        for value in inputs:
            if value is not None and not isinstance(value, ir.Value):
                raise HbirError(
                    f"{base}: input {value!r} (type={type(value).__name__}) is no graph value; "
                    "turn numbers into constants with builder.constant"
                )
        name = self._unique(base)
        metadata = {}
        if self._origin.op:
            metadata = {META_OP: self._origin.op, META_GROUP: self._origin.group}
        node = ir.Node(
            domain,
            op_type,
            inputs,
            _attributes(base, domain, op_type, attrs or {}),
            num_outputs=outputs,
            name=name,
            metadata_props=metadata,
        )
        for index, value in enumerate(node.outputs):
            value.name = name if index == 0 else self._unique(f"{name}:{index}")
        self.graph.append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def adopt(self, node: ir.Node) -> None:
        """Append a node of another graph, which was taken out of it, under names that are free."""
        node.name = self._unique(node.name or node.op_type)
        for value in node.outputs:
            value.name = self._unique(value.name or node.name)
        self.graph.append(node)

    def output(self, value: ir.Value, name: str) -> ir.Value:
        """Make ``value`` a graph output called ``name``; an Identity is put where it must be."""
        if value.is_graph_input() or value.is_initializer() or value.is_graph_output():
            value = self.add("Identity", [value], suffix=name)
        self._taken.discard(value.name or "")
        value.name = self._unique(name)
        self.graph.outputs.append(value)
        return value

    def remove_dead_nodes(self) -> None:
        """Drop nodes and initializers that no output needs."""
        for node in reversed(list(self.graph)):
            if not any(value.uses() or value.is_graph_output() for value in node.outputs):
                self.graph.remove(node, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses():
                del self.graph.initializers[name]

    def finish(self, metadata: Mapping[str, str]) -> ir.Model:
        """Return the model: types and shapes inferred, function bodies of the used ops added."""
        used = {node.op_type for node in self.graph if node.domain == DOMAIN}
        functions = [ir.serde.deserialize_function(proto) for proto in _functions_for(used)]
        model = ir.Model(
            self.graph,
            ir_version=IR_VERSION,
            producer_name="qtune",
            functions=functions,
            metadata_props=dict(metadata),
        )
        infer_types(model)
        return model

    def _unique(self, name: str) -> str:
        new = unique_name(name, self._taken)
        self._taken.add(new)
        return new


def mark_result(value: ir.Value, op: str, group: str) -> None:
    """Note on the node that makes ``value`` that it is the final result of the operator ``op``."""
    node = value.producer()
    if node is not None:
        node.metadata_props.update({META_OP: op, META_GROUP: group, META_RESULT: "1"})


def names_of(node: ir.Node) -> list[str]:
    """The operators that ``node`` is part of: its own, and all members of a converted group."""
    own = node.metadata_props.get(META_OP)
    members: list[str] = json.loads(node.metadata_props.get(META_MEMBERS, "[]"))
    return members if own is None or own in members else [*members, own]


def mark_codes(value: ir.Value, dtype: str, scale: float) -> None:
    """Note dtype name and scale of integer codes on ``value``."""
    value.metadata_props.update({META_DTYPE: dtype, META_SCALE: repr(float(scale))})


def _attributes(where: str, domain: str, op_type: str, attrs: Mapping[str, Any]) -> list[ir.Attr]:
    types = attribute_types(domain, op_type)
    given = {key: value for key, value in attrs.items() if value is not None}
    unknown = sorted(set(given) - set(types))
    if unknown:
        raise HbirError(
            f"{where}: {domain or 'onnx'}::{op_type} has no attribute {', '.join(unknown)}; it "
            f"takes {', '.join(sorted(types)) or 'none'}"
        )
    if domain == DOMAIN and set(given) != set(types):
        missing = ", ".join(sorted(set(types) - set(given)))
        raise HbirError(f"{where}: {DOMAIN}::{op_type} needs the attribute(s) {missing}")
    return [_attribute(key, value, types[key]) for key, value in given.items()]


def _attribute(key: str, value: Any, kind: int) -> ir.Attr:
    kinds = onnx.AttributeProto
    if kind == kinds.INT:
        return ir.AttrInt64(key, int(value))
    if kind == kinds.INTS:
        return ir.AttrInt64s(key, [int(item) for item in value])
    if kind == kinds.FLOAT:
        return ir.AttrFloat32(key, float(value))
    if kind == kinds.FLOATS:
        return ir.AttrFloat32s(key, [float(item) for item in value])
    if kind == kinds.STRING:
        return ir.AttrString(key, str(value))
    if kind == kinds.TENSOR:
        return ir.AttrTensor(key, ir.Tensor(np.asarray(value)))
    return ir.convenience.convert_attribute(key, value, ir.AttributeType(kind))


def constant_value(name: str, array: Array) -> ir.Value:
    """A value called ``name`` that holds ``array``, to be an initializer."""
    tensor = ir.Tensor(array, name=name)
    shape = ir.Shape(list(array.shape))
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
