"""Compares a recorded model with the float model it came from, on other inputs too."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.capture import GraphModel, Inputs, as_inputs, capture
from qtune.capture.structure import flatten


def leaves(value: Any) -> list[Any]:
    return flatten(value)[0]


def assert_equal(actual: Any, expected: Any) -> None:
    """Same structure, same classes, equal values and dtypes."""
    ours, theirs = flatten(actual), flatten(expected)
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0], strict=True):
        if isinstance(b, Tensor):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        else:
            assert type(a) is type(b)
            assert a == b


def assert_replays(model: nn.Module, example: Any, *others: Any) -> GraphModel:
    """Record on ``example``; the graph must equal the model on all inputs, also without aliasing.

    Returns the recorded model.
    """
    recorded = capture(model, example, fixed=True)
    for inputs in (example, *others):
        assert_same_call(recorded, model, inputs)
    return recorded


def assert_same_call(recorded: GraphModel, model: nn.Module, inputs: Any) -> None:
    call = as_inputs(inputs)
    given = [copy.deepcopy(call) for _ in range(3)]
    expected = copy.deepcopy(model)(*given[0].args, **given[0].kwargs)
    assert_equal(copy.deepcopy(recorded)(*given[1].args, **given[1].kwargs), expected)
    assert_equal(given[1].args, given[0].args)  # inputs changed in place change alike
    assert_equal(without_aliasing(copy.deepcopy(recorded), given[2]), expected)


def without_aliasing(recorded: GraphModel, inputs: Inputs) -> Any:
    """Run the graph with every node as a pure function: what prepare makes of it."""
    recorded.graph = separated(recorded.graph)
    return recorded(*inputs.args, **inputs.kwargs)


def separated(graph: fx.Graph) -> fx.Graph:
    """The graph with a copy of each tensor in front of each call that takes it."""
    for node in list(graph.nodes):
        if node.op in ("call_method", "call_function") and node.meta["kind"] == "op":
            _copy_arguments(graph, node)
    return graph


def _copy_arguments(graph: fx.Graph, node: fx.Node) -> None:
    for value in node.all_input_nodes:
        if isinstance(value.meta.get("dtype"), torch.dtype) and value.op != "get_attr":
            with graph.inserting_before(node):
                clone = graph.call_method("clone", (value,))
            node.replace_input_with(value, clone)
            clone.args = (value,)


def targets(recorded: GraphModel) -> list[Any]:
    return [node.target for node in recorded.graph.nodes]


def called_modules(recorded: GraphModel) -> list[str]:
    return [str(n.target) for n in recorded.graph.nodes if n.op == "call_module"]
