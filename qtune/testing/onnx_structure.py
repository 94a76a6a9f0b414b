"""Structure of an ONNX model that harms quantization: shared weights, operators left unfused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from qtune.hbir import hz_calibration
from qtune.ops.registry import kernel_owners
from qtune.ops.spec import FuseRole
from qtune.testing.onnx_model import CALIBRATED, OnnxModel

_PASSING = ("QuantizeLinear", "DequantizeLinear", "Identity")
_JOINS = (FuseRole.ADD, FuseRole.RELU, FuseRole.BN)


@dataclass(frozen=True, slots=True)
class Unfused:
    """Nodes that convert would fuse, and what keeps them apart."""

    names: tuple[str, ...]
    reason: str


class _Graph:
    """Who reads what, with calibration nodes passed over."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        graph = proto.graph
        self.nodes = [node for node in graph.node if not _passes(node)]
        self.constants = {tensor.name for tensor in graph.initializer}
        made = [node for node in graph.node if node.op_type == "Constant"]
        self.constants |= {name for node in made for name in node.output}
        self.passed = {node.output[0]: node.input[0] for node in graph.node if _passes(node)}
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(map(self.root, node.input)):
                self.users.setdefault(name, []).append(node)
        self.outputs = {self.root(info.name) for info in graph.output}

    def role(self, node: onnx.NodeProto) -> FuseRole | None:
        """The part that a node plays in fusing; a product of two results plays none."""
        if node.op_type in ("Gemm", "MatMul"):
            return FuseRole.GEMM if self.root(node.input[1]) in self.constants else None
        owner = kernel_owners().get((node.domain, node.op_type))
        return None if owner is None else owner.fuse

    def root(self, name: str) -> str:
        """The tensor before all calibration nodes."""
        while name in self.passed:
            name = self.passed[name]
        return name


def weight_readers(model: OnnxModel) -> dict[str, list[str]]:
    """Weight of a GEMM -> the nodes that read it, in order of execution."""
    graph = _Graph(model.proto)
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        for name in map(graph.root, node.input[1:2]):
            if graph.role(node) is FuseRole.GEMM and name in graph.constants:
                found.setdefault(name, []).append(node.name)
    return found


def unfused(model: OnnxModel) -> list[Unfused]:
    """Every GEMM whose result a batch norm, an add or a relu takes that is not fused with it."""
    graph = _Graph(model.proto)
    groups = model.hbir[0].groups() if model.kind == CALIBRATED else {}
    return list(_unfused(graph, groups))


def _unfused(graph: _Graph, groups: Mapping[str, str]) -> Iterator[Unfused]:
    gemms = [node for node in graph.nodes if graph.role(node) is FuseRole.GEMM]
    taken = {groups[node.name] for node in gemms if node.name in groups}
    for node in gemms:
        readers = graph.users.get(node.output[0], [])
        joins = [user for user in readers if graph.role(user) in _JOINS]
        # an add may have its one convolution already
        apart = [user for user in joins if groups.get(user.name, user.name) not in taken]
        reasons = {user.name: _reason(node, user, readers, graph) for user in apart}
        yield from (Unfused((node.name, user), why) for user, why in reasons.items() if why)


def _reason(
    node: onnx.NodeProto,
    follower: onnx.NodeProto,
    readers: Sequence[onnx.NodeProto],
    graph: _Graph,
) -> str:
    """What keeps two nodes apart; empty where nothing does."""
    if len(readers) > 1:
        others = ", ".join(user.name for user in readers if user is not follower)
        return f"{node.name} is read by {others} too"
    if node.output[0] in graph.outputs:
        return f"{node.output[0]} is an output of the model"
    if node.output[0] not in follower.input:
        return f"{node.output[0]} is quantized between them"
    return "" if graph.role(follower) is not FuseRole.BN else "the batch norm is not folded"


def _passes(node: onnx.NodeProto) -> bool:
    return bool(hz_calibration.is_calibration(node) or node.op_type in _PASSING)
