"""Fused groups in graphs of several branches: the same operators must form the same group in all.

An operator that two branches, or two runs of a dynamic block, call at different nodes is one
operator with one fake-quantize, so it can't be in the middle of a group here and its end there.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from qtune.capture.branches import is_aside
from qtune.capture.fusion import FusedGroup, FusionResult, Unfused


def names_of(group: FusedGroup) -> tuple[str, ...]:
    """The operators of a group."""
    return tuple(str(node.meta["name"]) for node in group.nodes)


def consistent(graph: fx.Graph, found: FusionResult) -> FusionResult:
    """``found`` without the groups whose operators act otherwise in another call of them."""
    group_at = {node: names_of(group) for group in found.groups for node in group.nodes}
    calls: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module" and not is_aside(node):
            calls.setdefault(str(node.meta.get("name")), []).append(node)
    result = FusionResult(unfused=list(found.unfused))
    odd = {
        names
        for names in set(group_at.values())
        if any(group_at.get(node) != names for name in names for node in calls[name])
    }
    for group in found.groups:
        if names_of(group) not in odd:
            result.groups.append(group)
            continue
        reason = "not fused: other branches of the model use one of them in another place"
        result.unfused.append(Unfused(group.nodes, reason))
    return result


def by_operators(groups: Iterable[FusedGroup]) -> list[list[FusedGroup]]:
    """The groups, those of the same operators together."""
    found: dict[tuple[str, ...], list[FusedGroup]] = {}
    for group in groups:
        found.setdefault(names_of(group), []).append(group)
    return list(found.values())
