"""Fused groups found in hand-made graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from qtune.capture.fusion import FusionResult, FusionRules, find_groups
from qtune.ops.spec import FuseRole

ROLES = {
    "conv": FuseRole.GEMM,
    "bn": FuseRole.BN,
    "add": FuseRole.ADD,
    "relu": FuseRole.RELU,
}


def role(node: fx.Node) -> FuseRole | None:
    return ROLES.get(str(node.target).rstrip("0123456789"))


def search(build: Callable[[fx.Graph, Callable[..., fx.Node]], None], **rules: object) -> list:
    graph = fx.Graph()

    def call(target: str, *args: object) -> fx.Node:
        node = graph.call_module(target, args)
        node.meta.update(shape=(1, 4, 8, 8), name=target)
        return node

    build(graph, call)
    calls = Counter(str(n.target) for n in graph.nodes)
    defaults = {
        "role": role,
        "shared": lambda n: f"reused: {n.target}" if calls[str(n.target)] > 1 else None,
        "foldable": lambda gemm, bn: None,
        "shape": lambda n: n.meta.get("shape"),
    }
    result = find_groups(graph, FusionRules(**{**defaults, **rules}))  # type: ignore[arg-type]
    return [[str(n.target) for n in group.nodes] for group in result.groups], result


def chain(*names: str) -> Callable[[fx.Graph, Callable[..., fx.Node]], None]:
    def build(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        x = graph.placeholder("x")
        other = graph.placeholder("other")
        for node in (x, other):
            node.meta["shape"] = (1, 4, 8, 8)
        for name in names:
            x = call(name, x, other) if name == "add" else call(name, x)
        graph.output((x,))

    return build


@pytest.mark.parametrize(
    "names",
    [
        ("conv", "bn"),
        ("conv", "relu"),
        ("conv", "add"),
        ("conv", "bn", "relu"),
        ("conv", "bn", "add"),
        ("conv", "add", "relu"),
        ("conv", "bn", "add", "relu"),
    ],
)
def test_every_documented_pattern_is_one_group(names: tuple[str, ...]) -> None:
    groups, result = search(chain(*names))
    assert groups == [list(names)]
    assert result.unfused == []
    assert result.groups[0].last.target == names[-1]


@pytest.mark.parametrize(
    "names",
    [("conv",), ("relu", "conv"), ("bn", "relu"), ("conv", "pool", "relu"), ("add", "relu")],
)
def test_other_chains_are_no_group(names: tuple[str, ...]) -> None:
    assert search(chain(*names))[0] == []


def test_a_batch_norm_behind_the_add_ends_the_group() -> None:
    assert search(chain("conv", "add", "bn"))[0] == [["conv", "add"]]


def test_conv_may_be_the_second_operand_of_the_add() -> None:
    def build(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        x = graph.placeholder("x")
        x.meta["shape"] = (1, 4, 8, 8)
        graph.output((call("add", x, call("conv", x)),))

    assert search(build)[0] == [["conv", "add"]]


def test_of_two_convs_the_later_one_takes_the_add() -> None:
    def build(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        x = graph.placeholder("x")
        first, second = call("conv1", x), call("conv2", x)
        graph.output((call("relu", call("add", first, second)),))

    assert search(build)[0] == [["conv2", "add", "relu"]]


def test_an_add_of_a_number_or_of_another_shape_is_not_fused() -> None:
    def number(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        graph.output((call("add", call("conv", graph.placeholder("x")), 2.0),))

    def broadcast(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        row = graph.placeholder("row")
        row.meta["shape"] = (1, 4, 1, 1)
        graph.output((call("add", call("conv", graph.placeholder("x")), row),))

    def twice(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        y = call("conv", graph.placeholder("x"))
        graph.output((call("add", y, y),))

    for build in (number, broadcast, twice):
        assert search(build)[0] == []


def test_an_output_with_a_second_user_is_not_fused_and_reported() -> None:
    """A11"""

    def build(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        y = call("conv", graph.placeholder("x"))
        graph.output((call("relu", y), y))

    groups, result = search(build)
    assert groups == []
    (unfused,) = result.unfused
    assert [n.target for n in unfused.nodes] == ["conv", "relu"]
    assert unfused.reason == "not fused: the output of conv is used elsewhere too"


def test_reused_modules_are_not_fused_and_reported() -> None:
    """A09"""

    def conv_twice(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        x = graph.placeholder("x")
        graph.output((call("bn", call("conv", x)), call("conv", x)))

    def bn_twice(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        x = graph.placeholder("x")
        graph.output((call("bn", call("conv1", x)), call("bn", call("conv2", x))))

    assert search(conv_twice)[0] == []
    assert search(conv_twice)[1].unfused[0].reason == "not fused: reused: conv"
    assert search(bn_twice)[0] == []
    assert len(search(bn_twice)[1].unfused) == 2


def test_a_batch_norm_that_cannot_be_folded_stays_apart() -> None:
    groups, result = search(chain("conv", "bn", "relu"), foldable=lambda g, b: "reused: the weight")
    assert groups == []
    assert result.unfused[0].reason == "not fused: reused: the weight"


def test_groups_come_in_order_of_execution() -> None:
    groups, _ = search(chain("conv1", "relu1", "conv2", "bn2", "relu2", "conv3"))
    assert groups == [["conv1", "relu1"], ["conv2", "bn2", "relu2"]]


def test_the_graph_is_left_as_it_is() -> None:
    graph = fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU())).graph
    before = str(graph)
    rules = FusionRules(lambda n: None, lambda n: None, lambda g, b: None, lambda n: None)
    assert find_groups(graph, rules) == FusionResult()
    assert str(graph) == before
    assert torch.is_grad_enabled()


def test_a_group_goes_through_nodes_that_pass_their_input_on() -> None:
    def build(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        y = call("same1", call("bn", call("conv", graph.placeholder("x"))))
        graph.output(call("relu", call("same2", y)))

    def passes(node: fx.Node) -> bool:
        return str(node.target).startswith("same")

    groups, _ = search(build, passes=passes)
    assert groups == [["conv", "bn", "same1", "same2", "relu"]]
    assert search(build)[0] == [["conv", "bn"]]


def test_a_passed_value_that_is_used_elsewhere_ends_the_group() -> None:
    def build(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        y = call("same", call("bn", call("conv", graph.placeholder("x"))))
        graph.output((call("relu", y), y))

    groups, result = search(build, passes=lambda node: node.target == "same")
    assert groups == [["conv", "bn"]]
    assert "used elsewhere" in result.unfused[0].reason


def test_a_question_about_the_shape_is_no_use() -> None:
    def build(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        y = call("conv", graph.placeholder("x"))
        graph.call_function(getattr, (y, "ndim")).meta["kind"] = "value"
        graph.call_method("size", (y, 0)).meta["kind"] = "size"
        graph.output(call("relu", y))

    assert search(build)[0] == [["conv", "relu"]]


def test_a_question_about_the_values_is_a_use() -> None:
    def build(graph: fx.Graph, call: Callable[..., fx.Node]) -> None:
        y = call("conv", graph.placeholder("x"))
        graph.call_method("item", (y,)).meta["kind"] = "value"
        graph.output(call("relu", y))

    assert search(build)[0] == []
