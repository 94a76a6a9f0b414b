"""Which operators act as one: GEMM (+ batch norm) (+ add) (+ relu), found in the graph.

Fusion is structural: the members stay operators of their own, with their names; only the last
one quantizes its output. Nothing here changes the graph or names an operator: the caller says which
part (:class:`~qtune.ops.spec.FuseRole`) a node plays and what speaks against touching it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import fx

from qtune.capture.branches import users_that_count
from qtune.ops.spec import FuseRole

_ORDER = (FuseRole.GEMM, FuseRole.BN, FuseRole.ADD, FuseRole.RELU)
_FACTS = frozenset({"dim", "ndim", "dtype", "device", "numel", "is_floating_point"})
"""What a model asks a tensor without reading its values; sizes have a kind of their own."""


@dataclass(frozen=True, slots=True)
class FusionRules:
    """What the search asks about nodes.

    ``role(node)``: the part the node plays, or ``None``. ``shared(node)``: why the node's module
    must be left alone (reused elsewhere), or ``None``. ``foldable(gemm, bn)``: why the batch norm
    can't be joined with this GEMM, or ``None``. ``shape(node)``: shape of the result, or ``None``.
    ``passes(node)``: whether the node gives its input as it is (nn.Identity): a group goes through.
    """

    role: Callable[[fx.Node], FuseRole | None]
    shared: Callable[[fx.Node], str | None]
    foldable: Callable[[fx.Node, fx.Node], str | None]
    shape: Callable[[fx.Node], tuple[int, ...] | None]
    passes: Callable[[fx.Node], bool] = lambda node: False


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """Nodes that act as one operator, in order of execution; ``members`` maps role to node."""

    members: Mapping[FuseRole, fx.Node]
    nodes: tuple[fx.Node, ...]

    @property
    def last(self) -> fx.Node:
        """The member whose output is the group's output."""
        return self.nodes[-1]

    @property
    def batch_norm(self) -> fx.Node | None:
        """The batch norm, if the group has one."""
        return self.members.get(FuseRole.BN)


@dataclass(frozen=True, slots=True)
class Unfused:
    """A fusible pattern that was left alone, and why."""

    nodes: tuple[fx.Node, ...]
    reason: str


@dataclass(slots=True)
class FusionResult:
    """All groups of two or more operators, and the patterns that were not fused."""

    groups: list[FusedGroup] = field(default_factory=list)
    unfused: list[Unfused] = field(default_factory=list)


def find_groups(graph: fx.Graph, rules: FusionRules) -> FusionResult:
    """Find every fusible pattern of toolchain_facts.md section 7.3.

    A node belongs to one group at most. Where both operands of an add are GEMMs, the later one
    takes the add, so that the other operand exists when the group runs.
    """
    result = FusionResult()
    taken: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        if rules.role(node) is not FuseRole.GEMM:
            continue
        group = _grow(node, rules, taken, result)
        if len(group.members) > 1:
            result.groups.append(group)
            taken.update(group.nodes)
    result.groups.reverse()
    result.unfused.reverse()
    return result


def _grow(
    gemm: fx.Node, rules: FusionRules, taken: set[fx.Node], result: FusionResult
) -> FusedGroup:
    members = {FuseRole.GEMM: gemm}
    nodes: tuple[fx.Node, ...] = (gemm,)
    last, stage = gemm, 0
    while True:
        passed = _passed_on(last, rules)
        found = _fusible_users((last, *passed)[-1], rules, stage)
        if not found:
            return FusedGroup(members, nodes)
        user = found[0]
        role = rules.role(user)
        reason = _obstacle(members, (last, *passed)[-1], user, rules, taken)
        if reason is not None or role is None:
            if reason:
                result.unfused.append(Unfused((*nodes, *passed, user), reason))
            return FusedGroup(members, nodes)
        members[role] = user
        nodes = (*nodes, *passed, user)
        last, stage = user, _ORDER.index(role)


def _passed_on(node: fx.Node, rules: FusionRules) -> tuple[fx.Node, ...]:
    """The nodes behind ``node`` that hand its result on, as long as nothing else takes it."""
    chain: tuple[fx.Node, ...] = ()
    while True:
        users = [user for user in users_that_count(node) if not _asks_about_shape(user)]
        if len(users) != 1 or not rules.passes(users[0]) or rules.shared(users[0]):
            return chain
        node = users[0]
        chain = (*chain, node)


def _fusible_users(node: fx.Node, rules: FusionRules, stage: int) -> list[fx.Node]:
    later = _ORDER[stage + 1 :]
    return [user for user in users_that_count(node) if rules.role(user) in later]


def _obstacle(
    members: Mapping[FuseRole, fx.Node],
    last: fx.Node,
    user: fx.Node,
    rules: FusionRules,
    taken: set[fx.Node],
) -> str | None:
    """Why ``user`` can't join; ``""`` where the two are simply no pattern."""
    if user in taken:
        return ""
    role = rules.role(user)
    if role is FuseRole.BN and FuseRole.BN in members:
        return ""
    if role is FuseRole.ADD and not _is_residual(last, user, rules):
        return ""
    others = (other for other in users_that_count(last) if other is not user)
    if not all(map(_asks_about_shape, others)):
        return f"not fused: the output of {last.meta.get('name', last.name)} is used elsewhere too"
    for node in (*members.values(), user):
        reason = rules.shared(node)
        if reason is not None:
            return f"not fused: {reason}"
    if role is FuseRole.BN:
        reason = rules.foldable(members[FuseRole.GEMM], user)
        return None if reason is None else f"not fused: {reason}"
    return None


def _asks_about_shape(node: fx.Node) -> bool:
    """Whether the node takes a size or a fact of its tensor: the same, fused or not."""
    name = node.args[1] if node.target is getattr else node.target
    kind = node.meta.get("kind")
    return kind == "size" or (kind == "value" and name in _FACTS)


def _is_residual(last: fx.Node, add: fx.Node, rules: FusionRules) -> bool:
    """Whether the add's two operands are tensors of one shape, ``last`` being exactly one."""
    operands = [arg for arg in add.args[:2] if isinstance(arg, fx.Node)]
    if len(operands) != 2 or operands.count(last) != 1:
        return False
    shapes = [rules.shape(operand) for operand in operands]
    return shapes[0] is not None and shapes[0] == shapes[1] == rules.shape(add)
