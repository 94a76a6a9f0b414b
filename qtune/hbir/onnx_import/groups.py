"""Fused groups of an imported graph: a GEMM and what follows it before the next quantize node."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from qtune.hbir.builder import META_REASON
from qtune.ops.registry import kernel_owners
from qtune.ops.spec import FuseRole, Rule


def group_names(graph: ir.Graph, names: Mapping[ir.Node, str]) -> dict[ir.Node, str]:
    """The name of the group of each node that has one: that of its last member."""
    found: dict[ir.Node, str] = {}
    for node in reversed(list(graph)):
        follower = _only_user(node)
        if follower is None or _role(node) is None:
            continue
        if _role(follower) in (FuseRole.ADD, FuseRole.RELU, FuseRole.BN):
            found[node] = found.get(follower, names[follower])
    return found


def _only_user(node: ir.Node) -> ir.Node | None:
    value = node.outputs[0]
    users = {user for user, _ in value.uses()}
    if len(users) != 1 or value.is_graph_output():
        return None
    return users.pop()


def _role(node: ir.Node) -> FuseRole | None:
    owner = kernel_owners().get((node.domain, node.op_type))
    if owner is None or META_REASON in node.metadata_props:  # the file keeps it float
        return None
    is_clamp = owner.rule is Rule.INPUT_SCALE and owner.family == "activation"  # Relu, Clip
    return FuseRole.RELU if is_clamp else owner.fuse
