"""Fused groups of the quantized operators, and what prepare does with their batch norms."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from qtune.capture.branches import is_aside, most_calls, users_that_count
from qtune.capture.fusion import FusedGroup, FusionResult, FusionRules, find_groups
from qtune.capture.graph import GraphModel
from qtune.capture.members import attribute_at
from qtune.errors import PrepareError
from qtune.modes import POWER_OF_TWO_WEIGHTS, FuseMode, QATMode, get_qat_mode
from qtune.nn.qat import QATOp
from qtune.nn.qat.kept_norm import KeptNorm
from qtune.nn.qat.op import TRAINING
from qtune.ops.registry import find_module
from qtune.ops.spec import FuseRole
from qtune.prepare.absorb import Located, fold_into, leave_identity
from qtune.prepare.groups import by_operators, consistent
from qtune.prepare.operators import Operators
from qtune.prepare.region import Region, classify

GROUP = "group"
"""Key of ``node.meta``: name of the last member of the operator's fused group."""


def fuse(
    ops: Operators,
    region: Region,
    mode: QATMode = QATMode.FuseBN,
    fuse_mode: FuseMode = FuseMode.BNAddReLU,
) -> FusionResult:
    """Find the fused groups of the quantized operators and note them in ``node.meta``.

    ``fuse_mode`` NoFuse finds none: every operator keeps a scale of its own.
    """
    facts = _Facts(ops, region, mode)
    rules = FusionRules(facts.role, facts.shared, facts.foldable, facts.shape, facts.passes)
    no_fuse = fuse_mode is FuseMode.NoFuse
    found = FusionResult() if no_fuse else find_groups(ops.graph, rules)
    result = consistent(ops.graph, found)
    for node in ops.graph.nodes:
        node.meta.pop(GROUP, None)
    for group in result.groups:
        for node in group.nodes:
            node.meta[GROUP] = group.last.meta["name"]
    return result


def fusible(graph: GraphModel, training: bool) -> tuple[Operators, FusionResult]:
    """The operators of a recorded float model, and the groups that ``prepare`` finds among them.

    ``training``: the model's flag. Changes ``graph``.
    """
    ops = Operators(graph, training)
    ops.replace_calls()
    return ops, fuse(ops, classify(ops, {}, strip=True), get_qat_mode())


def fold_batch_norms(ops: Operators, groups: list[FusedGroup]) -> None:
    """Fold each group's batch norm into its GEMM, in float64; an Identity takes its place."""
    for group, *_ in by_operators(groups):
        gemm, bn = group.members[FuseRole.GEMM], group.batch_norm
        op, norm = ops.op(gemm), None if bn is None else ops.op(bn)
        if bn is not None and op is not None and norm is not None:
            calls = [node for node in ops.graph.nodes if ops.op(node) is norm]
            fold_into(Located(ops.model, op, gemm), Located(ops.model, norm, bn))
            ops.install(norm.name, leave_identity(norm, calls), norm)


def keep_batch_norms(
    ops: Operators, groups: list[FusedGroup], mode: QATMode, level: int | None
) -> None:
    """Tie each group's batch norm to its GEMM: it trains on, and the GEMM absorbs it at export.

    ``level``: the consistency level in force. Raises ``PrepareError`` where the mode can't be
    right: WithBN with weight scales that are powers of two or one for all channels.
    """
    for group, *_ in by_operators(groups):
        gemm, bn = ops.op(group.members[FuseRole.GEMM]), group.batch_norm
        norm = None if bn is None else ops.op(bn)
        if gemm is None or norm is None:
            continue
        kept = KeptNorm(gemm, norm, reverse=mode is QATMode.WithBNReverseFold)
        if not kept.reverse:
            _check_scale_moves(kept, level)
        gemm.kept = norm.kept = kept


def _check_scale_moves(kept: KeptNorm, level: int | None) -> None:
    """Whether the weight's scale can be multiplied by the norm's factor of each channel."""
    quantizer = kept.gemm.weight_fake_quant
    rounded = level is not None and level >= POWER_OF_TWO_WEIGHTS
    one_for_all = quantizer is not None and quantizer.ch_axis == -1
    if quantizer is None or not (rounded or one_for_all):
        return
    why = (
        f"consistency level {level} rounds the weight's scale to a power of two"
        if rounded
        else "its weight has one scale for all channels"
    )
    raise PrepareError(
        f"prepare: {kept.gemm.name}: {why}, which absorbing {kept.norm.name} would undo in the QAT "
        "mode with_bn. Set QATMode.WithBNReverseFold, whose scale is that of the absorbed weight, "
        "or QATMode.FuseBN"
    )


class _Facts:
    """What the search for groups asks."""

    def __init__(self, ops: Operators, region: Region, mode: QATMode) -> None:
        self.ops = ops
        self.region = region
        self.mode = mode
        self.calls: dict[str, list[fx.Node]] = {}
        for node in ops.graph.nodes:
            if node.op == "call_module" and not is_aside(node):
                self.calls.setdefault(str(node.target), []).append(node)
        self.owners = _owners(ops)

    def role(self, node: fx.Node) -> FuseRole | None:
        op = self.ops.op(node)
        return op.spec.fuse if op is not None and node in self.region.quantized else None

    def passes(self, node: fx.Node) -> bool:
        """Whether the node is an nn.Identity, as nets have in the place of a dropout."""
        op, found = self.ops.op(node), find_module(nn.Identity)
        if op is None or found is None or node not in self.region.quantized:
            return False
        spec, target = found
        return op.spec is spec and op.attrs == target.bind(nn.Identity(), None).attrs

    def shared(self, node: fx.Node) -> str | None:
        count = most_calls(self.calls[str(node.target)])
        return f"reused: {node.meta['name']} is called {count} times" if count > 1 else None

    def shape(self, node: fx.Node) -> tuple[int, ...] | None:
        shape = node.meta.get("shape")
        return None if shape is None else tuple(shape)

    def foldable(self, gemm: fx.Node, bn: fx.Node) -> str | None:
        names = ("weight", "bias")
        found = [self._located(gemm).operand(name)[0] for name in names]
        for name, value in zip(names, found, strict=True):
            sharers = self.owners.get(id(value), [])
            if len(sharers) > 1:
                return f"reused: the {name} of {gemm.meta['name']} is shared ({', '.join(sharers)})"
        weight = found[0]
        if weight is None:
            return f"the weight of {gemm.meta['name']} is computed while the model runs"
        if len(weight.shape) != len(gemm.meta["shape"]):
            return f"{bn.meta['name']} normalizes another axis than the channels of the weight"
        norm = self.ops.op(bn)
        if self._located(bn).operand("running_mean")[0] is None:
            return f"{bn.meta['name']} has no running statistics"
        if norm is None or norm.attrs.get(TRAINING):
            return f"{bn.meta['name']} normalizes by each batch's statistics in eval mode too"
        if self.mode is not QATMode.FuseBN and "running_mean" not in norm.params:
            return (
                f"{bn.meta['name']} is a function; the QAT mode {self.mode.value} keeps modules "
                "(nn.BatchNorm2d) only"
            )
        return None

    def _located(self, node: fx.Node) -> Located:
        op = self.ops.op(node)
        if op is None:
            raise PrepareError(f"prepare: {node.name} is no operator")
        return Located(self.ops.model, op, node)


def _owners(ops: Operators) -> dict[int, list[str]]:
    """Names under which each parameter is used, by its identity."""
    owners: dict[int, list[str]] = {}
    seen: set[str] = set()
    for node in ops.graph.nodes:
        op = ops.op(node)
        if is_aside(node):
            continue
        if node.op == "get_attr":
            value = attribute_at(ops.model, str(node.target).split("."))
            calls = most_calls(users_that_count(node))
            owners.setdefault(id(value), []).extend([str(node.target)] * calls)
        elif op is not None and op.name not in seen:
            seen.add(op.name)
            for name, value in _own_parameters(op).items():
                owners.setdefault(id(value), []).append(f"{op.name}.{name}")
    return owners


def _own_parameters(op: QATOp) -> dict[str, Any]:
    """The parameters and buffers that fill roles of the operator, by attribute."""
    values = {name: op.param(role) for role, name in op.params.items()}
    return {name: value for name, value in values.items() if value is not None}
