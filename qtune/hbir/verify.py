"""Legality of HBIR as data: rules over nodes and values, checked between stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from qtune.errors import HbirError
from qtune.hbir.attributes import node_attributes
from qtune.hbir.builder import META_DTYPE, META_OP, META_RESULT, META_SCALE
from qtune.hbir.domain import DOMAIN, schema
from qtune.ops.registry import kernel

STAGES = ("qat", "quantized")
MAX_ARGUMENTS = 256
ELEMENTS = {"qint4": "INT8", "qint8": "INT8", "qint16": "INT16", "qint32": "INT32"}


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A rule that each node of ``stages`` obeys. ``broken(node)`` says how not, or ``None``."""

    name: str
    stages: tuple[str, ...]
    broken: Callable[[ir.Node], str | None]


@dataclass(frozen=True, slots=True)
class ValueRule:
    """A rule that each value of ``stages`` obeys. ``broken(value)`` says how not, or ``None``."""

    name: str
    stages: tuple[str, ...]
    broken: Callable[[ir.Value], str | None]


def _known_operator(node: ir.Node) -> str | None:
    if kernel(node.domain, node.op_type) is None:
        return "no operator of the registry owns it"
    return None


def _follows_schema(node: ir.Node) -> str | None:
    if node.domain != DOMAIN:
        return None
    op = schema(node.op_type)
    if len(node.inputs) != len(op.inputs) or None in node.inputs:
        return f"it takes {op.inputs}"
    if set(node.attributes) != set(op.attributes):
        return f"it has the attributes {sorted(op.attributes)}"
    return None


def _runs_float(node: ir.Node) -> str | None:
    owner = kernel(node.domain, node.op_type)
    return "it has no float kernel" if owner is None or owner.run_float is None else None


def _runs_integer(node: ir.Node) -> str | None:
    owner = kernel(node.domain, node.op_type)
    if owner is None or not is_integer_node(node):
        return None
    missing = [kind for kind in ("reference", "fast") if getattr(owner, kind) is None]
    return f"it has no {' and no '.join(missing)} kernel" if missing else None


def _codes_leave_by_scale(node: ir.Node) -> str | None:
    if node.domain == DOMAIN or not any(is_codes(v) for v in node.inputs):
        return None
    floats = [v.name for v in node.outputs if v.dtype is not None and v.dtype.is_floating_point()]
    return f"codes become floats without a scale in {floats}" if floats else None


def _typed(value: ir.Value) -> str | None:
    return "it has no dtype" if value.dtype is None else None


def _static(value: ir.Value) -> str | None:
    if value.shape is None or not value.shape.is_static():
        return f"its shape {value.shape} is not static"
    return None


def _scale_is_positive(value: ir.Value) -> str | None:
    text = value.metadata_props.get(META_SCALE)
    if text is None:
        return None
    scale = float(text)
    return None if math.isfinite(scale) and scale > 0 else f"its scale is {scale}"


def _codes_fit_element(value: ir.Value) -> str | None:
    name = value.metadata_props.get(META_DTYPE)
    if name is None or value.dtype is None or value.dtype.is_floating_point():
        return None
    if value.dtype.name != ELEMENTS.get(name):
        return f"{name} codes are kept as {ELEMENTS.get(name)}, not {value.dtype.name}"
    return None


NODE_RULES = (
    NodeRule("known operator", STAGES, _known_operator),
    NodeRule("schema", STAGES, _follows_schema),
    NodeRule("float kernel", ("qat",), _runs_float),
    NodeRule("integer kernels", ("quantized",), _runs_integer),
    NodeRule("codes leave by a scale", ("quantized",), _codes_leave_by_scale),
)
VALUE_RULES = (
    ValueRule("dtype known", STAGES, _typed),
    ValueRule("static shape", STAGES, _static),
    ValueRule("scale positive", STAGES, _scale_is_positive),
    ValueRule("codes fit their element type", ("quantized",), _codes_fit_element),
)


def is_codes(value: ir.Value | None) -> bool:
    """Whether ``value`` holds integer codes with a scale."""
    if value is None or META_DTYPE not in value.metadata_props or value.dtype is None:
        return False
    return not value.dtype.is_floating_point()


def is_integer_node(node: ir.Node) -> bool:
    """Whether ``node`` of a quantized graph runs on integer kernels."""
    if any(is_codes(value) for value in (*node.inputs, *node.outputs)):
        return True
    owner = kernel(node.domain, node.op_type)
    return owner is not None and owner.run_float is None and owner.fast is not None


def verify(model: ir.Model, stage: str) -> None:
    """Raise ``HbirError`` with the broken rules and the nodes that break them."""
    lines = list(_broken(model, stage))
    if lines:
        raise HbirError(
            f"the {stage} module {model.graph.name!r} is not legal:\n"
            + "\n".join(f"  - {line}" for line in lines)
        )


def _broken(model: ir.Model, stage: str) -> Iterator[str]:
    graph = model.graph
    for kind, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        if len(values) > MAX_ARGUMENTS:
            yield f"{len(values)} {kind}; a function has at most {MAX_ARGUMENTS}"
    yield from _repeated_results(graph)
    for value in graph.inputs:
        yield from (f"input: {reason}" for reason in _broken_value(value, stage))
    known = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        for reason in _broken_node(node, stage, known):
            yield f"{describe_node(node)}: {reason}"
        known.update(node.outputs)


def _broken_node(node: ir.Node, stage: str, known: set[ir.Value]) -> Iterator[str]:
    unknown = [v.name for v in node.inputs if v is not None and v not in known]
    if unknown:
        yield f"uses {unknown} before they are made"
    for rule in NODE_RULES:
        reason = rule.broken(node) if stage in rule.stages else None
        if reason:
            yield f"[{rule.name}] {reason}"
    for value in node.outputs:
        yield from _broken_value(value, stage)


def _broken_value(value: ir.Value, stage: str) -> Iterator[str]:
    for rule in VALUE_RULES:
        reason = rule.broken(value) if stage in rule.stages else None
        if reason:
            yield f"[{rule.name}] {value.name!r}: {reason}"


def _repeated_results(graph: ir.Graph) -> Iterator[str]:
    seen: set[str] = set()
    for node in graph:
        op = node.metadata_props.get(META_OP, "")
        if META_RESULT in node.metadata_props:
            if op in seen:
                yield f"{describe_node(node)}: operator {op!r} has two results"
            seen.add(op)


def describe_node(node: ir.Node) -> str:
    """One line that shows a node: name, operator, inputs, attributes, outputs."""
    inputs = ", ".join("-" if v is None else str(v.name) for v in node.inputs)
    outputs = ", ".join(str(v.name) for v in node.outputs)
    attributes = node_attributes(node)
    kind = f"{node.domain or 'onnx'}::{node.op_type}"
    return f"node {node.name!r}: ({outputs}) = {kind}({inputs}) {attributes or ''}".rstrip()
