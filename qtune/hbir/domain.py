"""The operators of the domain ``qtune``: schema, function body, and the models made of one node.

What an operator is called, takes and carries is data (:class:`DomainOp`); what it computes in
standard ONNX is its body. Both live in ``qtune/hbir/bodies/<family>.py``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, helper, shape_inference
from onnx import parser as onnx_parser

from qtune.errors import HbirError

DOMAIN = "qtune"
DOMAIN_VERSION = 1
OPSET = 21
IR_VERSION = 10

_ATTRIBUTE_TYPES: Mapping[str, int] = MappingProxyType(
    {
        "int": onnx.AttributeProto.INT,
        "ints": onnx.AttributeProto.INTS,
        "float": onnx.AttributeProto.FLOAT,
        "floats": onnx.AttributeProto.FLOATS,
        "string": onnx.AttributeProto.STRING,
    }
)


@dataclass(frozen=True, slots=True)
class DomainOp:
    """One operator of the domain.

    ``inputs`` and ``outputs``: names in order, all mandatory. ``attributes``: name -> type, one of
    ``int``, ``ints``, ``float``, ``floats``, ``string``, all mandatory. ``doc``: what it computes.
    """

    name: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)
    doc: str = ""
    outputs: tuple[str, ...] = ("y",)


_added: dict[str, tuple[DomainOp, str]] = {}
"""Operators registered outside of ``qtune.hbir.bodies``: schema and text of the body by name."""


def register_domain_op(op: DomainOp, body_text: str) -> DomainOp:
    """Enter an operator of a user's, with its function body as ONNX text; its name must be new.

    Raises ``HbirError`` where the name is taken or where body and schema differ.
    """
    if op.name in domain_ops():
        raise HbirError(f"{DOMAIN}::{op.name} is defined twice; rename one of them")
    _check_schema("register_domain_op", op.name, op, domain_ops())
    _added[op.name] = (op, body_text)
    domain_ops.cache_clear()
    _texts.cache_clear()
    try:
        body(op.name)
    except HbirError:
        del _added[op.name]
        domain_ops.cache_clear()
        _texts.cache_clear()
        raise
    return op


def _body_modules() -> Iterable[ModuleType]:
    package = importlib.import_module("qtune.hbir.bodies")
    for module in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{module.name}")


@cache
def domain_ops() -> Mapping[str, DomainOp]:
    """All operators of the domain by name."""
    found: dict[str, DomainOp] = {}
    for module in _body_modules():
        for name, op in getattr(module, "SCHEMAS", {}).items():
            _check_schema(module.__name__, name, op, found)
            found[name] = op
    found |= {name: op for name, (op, _) in _added.items()}
    return MappingProxyType(found)


def _check_schema(where: str, name: str, op: DomainOp, found: Mapping[str, DomainOp]) -> None:
    if name in found:
        raise HbirError(f"{where}: operator {name!r} is defined twice; rename one of them")
    if name != op.name:
        raise HbirError(f"{where}: SCHEMAS[{name!r}] is named {op.name!r}; both must be equal")
    unknown = sorted(set(op.attributes.values()) - set(_ATTRIBUTE_TYPES))
    if unknown:
        known = ", ".join(_ATTRIBUTE_TYPES)
        raise HbirError(f"{where}: {name} has attribute types {unknown}; expected one of {known}")


@cache
def _texts() -> Mapping[str, tuple[str, str]]:
    own = {name: ("register_domain_op", text) for name, (_, text) in _added.items()}
    return own | {
        name: (module.__name__, text)
        for module in _body_modules()
        for name, text in getattr(module, "BODIES", {}).items()
    }


def bodies() -> Mapping[str, onnx.FunctionProto]:
    """The parsed function body of every operator, by name; each agrees with its schema."""
    names = sorted(set(domain_ops()) | set(_texts()))
    return MappingProxyType({name: body(name) for name in names})


@cache
def body(name: str) -> onnx.FunctionProto:
    """The parsed function body of ``qtune::name``; it agrees with the schema."""
    op = schema(name)
    if name not in _texts():
        raise HbirError(f"{DOMAIN}::{name} has no function body; add it to BODIES beside SCHEMAS")
    where, text = _texts()[name]
    try:
        function = onnx_parser.parse_function(text)
    except onnx_parser.ParseError as error:
        raise HbirError(f"{where}: the body of {name} is no ONNX function text: {error}") from None
    got = (function.domain, function.name, tuple(function.input), tuple(function.output))
    expected = (DOMAIN, name, op.inputs, op.outputs)
    if got != expected or set(function.attribute) != set(op.attributes):
        raise HbirError(
            f"{where}: body and schema of {name} differ: the body has {got} and attributes "
            f"{sorted(function.attribute)}, the schema {expected} and {sorted(op.attributes)}"
        )
    return function


def schema(name: str) -> DomainOp:
    """The schema of ``qtune::name``."""
    op = domain_ops().get(name)
    if op is None:
        known = ", ".join(sorted(domain_ops()))
        raise HbirError(f"no operator {DOMAIN}::{name}; the domain has: {known}")
    return op


def functions_for(op_types: Iterable[str]) -> list[onnx.FunctionProto]:
    """The bodies of ``op_types`` and of every ``qtune`` operator they use, callees first."""
    ordered: dict[str, onnx.FunctionProto] = {}
    for name in sorted(set(op_types)):
        _collect(name, ordered)
    return list(ordered.values())


def _collect(name: str, ordered: dict[str, onnx.FunctionProto]) -> None:
    if name in ordered:
        return
    for node in body(name).node:
        if node.domain == DOMAIN:
            _collect(node.op_type, ordered)
    ordered[name] = body(name)


def attribute_types(domain: str, op_type: str) -> Mapping[str, int]:
    """Attribute name -> onnx attribute type of an operator of ``qtune`` or of standard ONNX."""
    if domain == DOMAIN:
        kinds = schema(op_type).attributes
        return {key: _ATTRIBUTE_TYPES[kind] for key, kind in kinds.items()}
    try:
        found = defs.get_schema(op_type, OPSET, domain)
    except defs.SchemaError:
        raise HbirError(f"no operator {domain or 'onnx'}::{op_type} in opset {OPSET}") from None
    return {key: _type_number(attribute) for key, attribute in found.attributes.items()}


def _type_number(attribute: defs.OpSchema.Attribute) -> int:
    number: Any = attribute.type
    return int(number.value)


def attribute_protos(name: str, attrs: Mapping[str, Any]) -> list[onnx.AttributeProto]:
    """Attributes of a ``qtune`` node, checked against its schema and given its types."""
    op = schema(name)
    if set(attrs) != set(op.attributes):
        raise HbirError(
            f"{DOMAIN}::{name} takes the attributes {sorted(op.attributes)}, got {sorted(attrs)}"
        )
    return [
        helper.make_attribute(key, attrs[key], attr_type=_ATTRIBUTE_TYPES[kind])
        for key, kind in op.attributes.items()
    ]


def single_node_model(
    op: str, inputs: Sequence[np.ndarray[Any, Any]], attrs: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """A checked model with the one node ``qtune::op``.

    Its graph inputs are named as in the schema and typed like ``inputs`` (NumPy arrays); its graph
    outputs are named as in the schema. ONNX Runtime runs it through the function body.
    """
    protos = attribute_protos(op, attrs or {})
    takes, gives = schema(op).inputs, schema(op).outputs
    if len(inputs) != len(takes):
        raise HbirError(f"{DOMAIN}::{op} takes {takes}, got {len(inputs)} arrays")
    node = helper.make_node(op, takes, gives, domain=DOMAIN)
    node.attribute.extend(protos)
    graph = helper.make_graph(
        [node],
        op,
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(takes, inputs, strict=True)
        ],
        [helper.make_empty_tensor_value_info(name) for name in gives],
    )
    model = helper.make_model(
        graph,
        functions=functions_for([op]),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)],
        ir_version=IR_VERSION,
    )
    model = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    checker.check_model(model, full_check=True)
    return model
