"""Facts about operators, carried over from the float graph to the integer graph."""

from __future__ import annotations

import json

import onnx_ir as ir

from qtune.hbir.builder import (
    META_FLOPS,
    META_GROUP,
    META_MEMBERS,
    META_OP,
    META_RESULT,
    META_TYPE,
    OPERATOR_FACTS,
)
from qtune.hbir.operation import META_MEMBER_TYPES


def annotate(target: ir.Graph, source: ir.Graph) -> None:
    """Note on the result node of each operator its facts, the members and flops of its group."""
    facts: dict[str, dict[str, str]] = {}
    members: dict[str, list[str]] = {}
    for node in source:
        props = node.metadata_props
        if META_OP not in props:
            continue
        op = props[META_OP]
        facts.setdefault(op, {}).update({k: v for k, v in props.items() if k in OPERATOR_FACTS})
        group = members.setdefault(props[META_GROUP], [])
        if op not in group:
            group.append(op)
    for node in target:
        props = node.metadata_props
        if META_RESULT not in props:
            continue
        props.update(facts.get(props[META_OP], {}))
        names = members.get(props[META_GROUP], []) if props[META_OP] == props[META_GROUP] else []
        if len(names) > 1:
            props[META_MEMBERS] = json.dumps(names)
            types = [facts[name].get(META_TYPE, "") for name in names]
            props[META_MEMBER_TYPES] = json.dumps([kind for kind in types if kind])
            total = sum(int(facts[name].get(META_FLOPS, "0")) for name in names)
            props[META_FLOPS] = str(total)
