"""The float parts of one ONNX node, under construction beside the graph.

What is emitted is what the registry's operator decomposes into, by its own ``decompose``: the same
parts, in the same order, with the same dtypes inside as in a prepared torch model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch

from qtune.dtype import QuantDType
from qtune.errors import OnnxImportError
from qtune.hbir.attributes import node_attributes
from qtune.hbir.builder import META_OP, GraphBuilder
from qtune.hbir.domain import DOMAIN, functions_for
from qtune.hbir.onnx_import.form import OnnxNode
from qtune.onnx_debug.build.decompose_masks import mask_of
from qtune.ops import registry
from qtune.ops.composed import PartsLowering
from qtune.ops.kernel import LowerCall
from qtune.ops.spec import Bound, OpSpec, Rule

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Note:
    """What the operator says of a part. ``dtype``: of its result, ``None`` for the configured one.

    ``bounds``: what its values can't leave.
    """

    dtype: QuantDType | None = None
    bounds: Bounds | None = None


class PartsBuilder(GraphBuilder):
    """Holds the parts of one node; values of the model's graph are taken in as they are used.

    ``notes``: name of a part -> what is said of it. ``entered``: value here -> value of the model.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        self.notes: dict[str, Note] = {}
        self.entered: dict[ir.Value, ir.Value] = {}
        self.free_batch = False
        self._inside: dict[ir.Value, ir.Value] = {}

    def enter(self, value: ir.Value) -> ir.Value:
        """``value`` of the model as a value here: an initializer, or an input."""
        found = self._inside.get(value)
        if found is None:
            found = ir.Value(
                name=self._unique(value.name or "x"),
                type=value.type,
                shape=value.shape,
                const_value=value.const_value,
            )
            if value.const_value is None:
                self.graph.inputs.append(found)
            else:
                self.graph.initializers.add(found)
            self._inside[value] = found
            self.entered[found] = value
        return found

    def node(self, node: ir.Node) -> OnnxNode:
        """A node of the model as the rewrites of the import take it."""
        outputs = [v for v in node.outputs if v.uses() or v.is_graph_output()]
        inputs = tuple(None if value is None else self.enter(value) for value in node.inputs)
        return OnnxNode(
            self.name,
            node.op_type,
            node_attributes(node),
            inputs,
            tuple(_array(value) for value in node.inputs),
            tuple(self._shape(value) for value in node.inputs),
            tuple(_dtype(value) for value in node.inputs),
            tuple(self._shape(value) for value in node.outputs),
            1 + max((node.outputs.index(value) for value in outputs), default=0),
            alone=tuple(False for _ in node.inputs),
        )

    def take_operator(self, entry: OpSpec, call: LowerCall) -> Any:
        """The parts of a call of the registry's operator ``entry``; its value(s)."""
        parts, bound = _Parts(self, call), Bound(call.operands, call.attrs)
        if entry.decompose is None:
            return parts.call(entry.name, bound.tensors, bound.attrs, part=entry.name)
        return entry.decompose(parts, bound)

    def facts(self, value: ir.Value) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of a value that was taken in."""
        shape, dtype = self._shape(value), _dtype(value)
        if shape is None or dtype is None:
            raise OnnxImportError(f"{self.name}: the shape of {value.name!r} is not static")
        return shape, getattr(torch, dtype)

    def finished(self) -> ir.Graph:
        """The graph in standard operators, its shapes inferred: definitions replace all others."""
        used = {node.op_type for node in self.graph if node.domain == DOMAIN}
        functions = [ir.serde.deserialize_function(proto) for proto in functions_for(used)]
        model = ir.Model(self.graph, ir_version=10, functions=functions)
        steps = (
            passes.InlinePass(),
            passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            passes.ShapeInferencePass(),
        )
        return ir.passes.Sequential(*steps)(model).model.graph

    def _shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The sizes; a free first one is 1 in examples."""
        if value is None or value.shape is None:
            return None
        sizes = list(value.shape)
        if sizes and not isinstance(sizes[0], int):
            self.free_batch = True
            sizes[0] = 1
        known = [size for size in sizes if isinstance(size, int)]
        return tuple(known) if len(known) == len(sizes) else None


class _Parts(PartsLowering):
    """The ``DecomposeBuilder`` of one call: its parts by name, with what the operator notes."""

    def __init__(
        self, builder: PartsBuilder, call: LowerCall, forced: QuantDType | None = None
    ) -> None:
        super().__init__(builder, call)
        self._builder, self._forced = builder, forced

    def call(
        self,
        op_name: str,
        tensors: Sequence[Any],
        attrs: Mapping[str, Any] | None = None,
        *,
        part: str,
        forced_dtype: QuantDType | None = None,
        bounds: Bounds | None = None,
    ) -> Any:
        entry, name = registry.spec(op_name), f"{self.name}_{part}"
        dtype = forced_dtype or self._forced
        bound = Bound(tuple(tensors), dict(attrs or {}))
        if entry.rule is Rule.DECOMPOSED:
            return self._nested(entry, bound, name, dtype)
        self._builder.notes[name] = Note(dtype, bounds)
        with self._builder.emitting_for(name):
            return self.lower(entry, bound)

    def made_by(self, tensor: Any) -> tuple[str, Bound] | None:
        value = self._builder.entered.get(tensor)
        maker = None if value is None else value.producer()
        if maker is None or maker.domain or value is not maker.outputs[0]:
            return None
        blocked = self._blocked(maker)
        if blocked is not None:
            return blocked
        owner = registry.kernel_owners().get(("", maker.op_type))
        inputs = [item for item in maker.inputs if item is not None]
        if owner is None or len(inputs) != len(owner.roles):
            return None
        values = tuple(self._builder.enter(item) for item in inputs)
        for inside, source in zip(values, inputs, strict=True):
            self.note(inside, *self._builder.facts(source))
        return owner.name, Bound(values)

    def _blocked(self, maker: ir.Node) -> tuple[str, Bound] | None:
        """A mask made of integers, ``(1 - mask) * low``, as zeros that are filled with ``low``."""
        found = mask_of(maker)
        if found is None:
            return None
        source, low = found
        value = self._builder.enter(source)
        shape, _ = self._builder.facts(source)
        with self._builder.emitting_for(f"{self.name}_mask_blocked"):
            free = self._builder.add("Cast", [value], {"to": int(ir.DataType.BOOL)})
            blocked = self.note(self._builder.add("Not", [free]), shape, torch.bool)
        zeros = self.constant(torch.zeros(()), part="mask_zeros")
        return "masked_fill", Bound((zeros, blocked, low))

    def float_call(
        self, function: Callable[..., Any], args: Sequence[Any], *, part: str, reason: str
    ) -> Any:
        raise NotImplementedError(reason)

    def _nested(self, entry: OpSpec, bound: Bound, name: str, dtype: QuantDType | None) -> Any:
        """The parts of a part."""
        tensors = tuple(bound.tensors)
        known = [self.is_tensor(value) for value in tensors]
        shapes = tuple(
            self.shape(v) if is_known else None for v, is_known in zip(tensors, known, strict=True)
        )
        dtypes = tuple(
            str(self.dtype(v)).removeprefix("torch.") if is_known else None
            for v, is_known in zip(tensors, known, strict=True)
        )
        call = LowerCall(name, tensors, bound.attrs, shapes, (), dtypes)
        inner = _Parts(self._builder, call, dtype)
        if entry.decompose is None:
            raise OnnxImportError(f"{name}: {entry.name} has no parts")
        result = entry.decompose(inner, bound)
        for value in result if isinstance(result, tuple) else (result,):
            self.note(value, inner.shape(value), inner.dtype(value))
        return result


def part_of(node: ir.Node) -> str:
    """The part that a node under construction belongs to."""
    return str(node.metadata_props.get(META_OP, ""))


def _array(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _dtype(value: ir.Value | None) -> str | None:
    return None if value is None or value.dtype is None else str(value.dtype.numpy())
