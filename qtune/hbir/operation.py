"""One operator node of a function, as a read-only view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qtune.hbir.attributes import node_attributes
from qtune.hbir.builder import META_DTYPE, META_GROUP, META_OP, META_SCALE

META_MEMBER_TYPES = "qtune.member_types"
"""Of the result of a fused group: the registry names of its members, as JSON."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of an operation. ``scale`` and ``quant_dtype`` are ``None`` for plain numbers."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    scale: float | None = None
    quant_dtype: str | None = None
    constant: bool = False

    @staticmethod
    def of(value: ir.Value) -> Operand:
        """The view of a graph value."""
        static = value.shape is not None and value.shape.is_static()
        scale = value.metadata_props.get(META_SCALE)
        return Operand(
            value.name or "",
            tuple(value.shape.numpy()) if static and value.shape is not None else None,
            "" if value.dtype is None else str(value.dtype.numpy()),
            None if scale is None else float(scale),
            value.metadata_props.get(META_DTYPE),
            value.const_value is not None,
        )


@dataclass(frozen=True, slots=True)
class Operation:
    """A node: ``name``, ``type`` (``qtune::QConv``, ``onnx::Relu``), operands, attributes.

    ``op``: the operator of the float model that it belongs to, ``group`` that operator's fused
    group. A missing optional input is ``None``.
    """

    name: str
    type: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    attributes: dict[str, Any]
    op: str
    group: str

    @staticmethod
    def of(node: ir.Node) -> Operation:
        """The view of a node."""
        op = node.metadata_props.get(META_OP, "")
        return Operation(
            node.name or "",
            f"{node.domain or 'onnx'}::{node.op_type}",
            tuple(None if value is None else Operand.of(value) for value in node.inputs),
            tuple(Operand.of(value) for value in node.outputs),
            node_attributes(node),
            op,
            node.metadata_props.get(META_GROUP, op),
        )
