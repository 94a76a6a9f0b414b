"""Fused groups of the quantized operators, and batch norms folded into their GEMM (FuseBN)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from qtune.capture.fusion import FusedGroup, FusionResult, FusionRules, find_groups
from qtune.capture.members import attribute_at
from qtune.nn.qat import QATOp, qat_class
from qtune.nn.qat.op import TRAINING
from qtune.ops.norm.fold import fold_batch_norm
from qtune.ops.registry import find_module
from qtune.ops.spec import FuseRole
from qtune.quantization.operators import Operators
from qtune.quantization.region import Region

GROUP = "group"
"""Key of ``node.meta``: name of the last member of the operator's fused group."""


def fuse(ops: Operators, region: Region) -> FusionResult:
    """Find the fused groups of the quantized operators and note them in ``node.meta``."""
    facts = _Facts(ops, region)
    rules = FusionRules(facts.role, facts.shared, facts.foldable, facts.shape)
    result = find_groups(ops.graph, rules)
    for node in ops.graph.nodes:
        node.meta.pop(GROUP, None)
    for group in result.groups:
        for node in group.nodes:
            node.meta[GROUP] = group.last.meta["name"]
    return result


def fold_batch_norms(ops: Operators, groups: list[FusedGroup]) -> None:
    """Fold each group's batch norm into its GEMM, in float64; an Identity takes its place."""
    for group in groups:
        if group.batch_norm is not None:
            _fold(ops, group.members[FuseRole.GEMM], group.batch_norm)


class _Facts:
    """What the search for groups asks."""

    def __init__(self, ops: Operators, region: Region) -> None:
        self.ops = ops
        self.region = region
        self.calls = Counter(str(n.target) for n in ops.graph.nodes if n.op == "call_module")
        self.owners = _owners(ops)

    def role(self, node: fx.Node) -> FuseRole | None:
        op = self.ops.op(node)
        return op.spec.fuse if op is not None and node in self.region.quantized else None

    def shared(self, node: fx.Node) -> str | None:
        count = self.calls[str(node.target)]
        return f"reused: {node.meta['name']} is called {count} times" if count > 1 else None

    def shape(self, node: fx.Node) -> tuple[int, ...] | None:
        shape = node.meta.get("shape")
        return None if shape is None else tuple(shape)

    def foldable(self, gemm: fx.Node, bn: fx.Node) -> str | None:
        names = ("weight", "bias")
        found = [_operand(self.ops, gemm, name) for name in names]
        for name, (value, _) in zip(names, found, strict=True):
            sharers = self.owners.get(id(value), [])
            if len(sharers) > 1:
                return f"reused: the {name} of {gemm.meta['name']} is shared ({', '.join(sharers)})"
        weight = found[0][0]
        if weight is None:
            return f"the weight of {gemm.meta['name']} is computed while the model runs"
        if len(weight.shape) != len(gemm.meta["shape"]):
            return f"{bn.meta['name']} normalizes another axis than the channels of the weight"
        if _operand(self.ops, bn, "running_mean")[0] is None:
            return f"{bn.meta['name']} has no running statistics"
        norm = self.ops.op(bn)
        if norm is None or norm.attrs.get(TRAINING):
            return f"{bn.meta['name']} normalizes by each batch's statistics in eval mode too"
        return None


def _owners(ops: Operators) -> dict[int, list[str]]:
    """Names under which each parameter is used, by its identity."""
    owners: dict[int, list[str]] = {}
    seen: set[str] = set()
    for node in ops.graph.nodes:
        op = ops.op(node)
        if node.op == "get_attr":
            value = attribute_at(ops.model, str(node.target).split("."))
            owners.setdefault(id(value), []).extend([str(node.target)] * len(node.users))
        elif op is not None and op.name not in seen:
            seen.add(op.name)
            for name, value in _own_parameters(op).items():
                owners.setdefault(id(value), []).append(f"{op.name}.{name}")
    return owners


def _own_parameters(op: QATOp) -> dict[str, Any]:
    """The parameters and buffers that fill roles of the operator, by attribute."""
    values = {name: op.param(role) for role, name in op.params.items()}
    return {name: value for name, value in values.items() if value is not None}


def _fold(ops: Operators, gemm: fx.Node, bn: fx.Node) -> None:
    op, norm = ops.op(gemm), ops.op(bn)
    if op is None or norm is None:
        return
    weight, set_weight = _operand(ops, gemm, "weight")
    bias, set_bias = _operand(ops, gemm, "bias")
    axis = 0 if op.spec.weight_axis is None else op.spec.weight_axis(op.attrs)
    new_weight, new_bias = fold_batch_norm(
        weight,
        bias,
        mean=_operand(ops, bn, "running_mean")[0],
        variance=_operand(ops, bn, "running_var")[0],
        gamma=_operand(ops, bn, "weight")[0],
        beta=_operand(ops, bn, "bias")[0],
        eps=norm.attrs["eps"],
        transposed=axis == 1,
        groups=op.weight_groups(op.attrs),
    )
    set_weight(new_weight)
    set_bias(new_bias)
    _leave_identity(ops, bn, norm)


def _leave_identity(ops: Operators, bn: fx.Node, norm: QATOp) -> None:
    found = find_module(nn.Identity)
    if found is None:
        return
    spec, target = found
    bound = target.bind(nn.Identity(), bn.args[0])
    identity = qat_class(spec, nn.Identity)(
        spec.name, norm.name, bound.attrs, float_type=norm.float_type
    )
    identity.float_repr = ""
    identity.train(norm.training)
    ops.install(norm.name, identity, norm)
    bn.args, bn.kwargs = bound.tensors, {}
    bn.meta["op"] = spec.name


def _operand(ops: Operators, node: fx.Node, role: str) -> tuple[Any, Callable[[Any], None]]:
    """The parameter that fills a role of a call, and how to replace it."""
    op = ops.op(node)
    if op is None or role not in op.spec.roles:
        return None, lambda value: None
    index = op.spec.roles.index(role)
    value = node.args[index] if index < len(node.args) else None
    if isinstance(value, fx.Node):
        if value.op != "get_attr":
            return None, lambda new: None
        owner, _, name = str(value.target).rpartition(".")
        module = ops.model.get_submodule(owner)
        return attribute_at(module, [name]), lambda new: _set(module, name, new)
    name = op.params.get(role, role)

    def replace(new: Any) -> None:
        op.params[role] = name
        _set(op, name, new)

    return getattr(op, op.params[role], None) if role in op.params else None, replace


def _set(module: nn.Module, name: str, value: torch.Tensor) -> None:
    old = module._parameters.get(name, getattr(module, name, None))
    if isinstance(old, nn.Parameter) and old.shape == value.shape:
        with torch.no_grad():
            old.copy_(value)
        return
    requires_grad = old is None or old.requires_grad
    module.register_parameter(name, nn.Parameter(value, requires_grad=requires_grad))
