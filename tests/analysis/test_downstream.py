"""Running the end of a graph again gives what the whole graph gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from qtune.analysis.downstream import Resume, _Sweep, can_resume, sweep
from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs
from qtune.capture.recorder import capture

from .nets import Block


class InPlace(nn.Module):
    """Changes a value that was used before."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        z = y * 2
        y += 1
        return y + z


def calls(model: GraphModel) -> set[fx.Node]:
    return {node for node in model.graph.nodes if node.op.startswith("call")}


def outputs_from_everywhere(model: GraphModel, inputs: Inputs) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def visit(node: fx.Node, resume: Resume) -> None:
        found[node.name] = (resume(), resume())

    sweep(model, inputs, calls(model), visit)
    return found


def test_resuming_at_any_node_gives_the_same_outputs() -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    graph = capture(model, x)
    assert can_resume(graph, Inputs(x))
    found = outputs_from_everywhere(graph, Inputs(x))
    assert len(found) == len(calls(graph))
    for first, second in found.values():
        assert torch.equal(first, model(x))
        assert torch.equal(second, first)


def test_a_resumed_run_draws_the_numbers_of_the_first_one() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + torch.rand_like(x)) * torch.rand_like(x)

    x = torch.rand(2, 3)
    graph = capture(Noisy(), x)
    torch.manual_seed(3)
    expected = graph(x)
    torch.manual_seed(3)
    for first, second in outputs_from_everywhere(graph, Inputs(x)).values():
        assert torch.equal(first, expected)
        assert torch.equal(second, expected)


def test_graphs_that_change_values_in_place_are_told_apart() -> None:
    x = torch.rand(2, 3)
    assert not can_resume(capture(InPlace(), x), Inputs(x))
    assert can_resume(capture(nn.Linear(3, 3), x), Inputs(x))


def test_only_values_that_are_needed_later_are_kept() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    x = torch.rand(2, 4)
    graph = capture(model, x)
    kept: list[int] = []
    runner = _Sweep(graph, calls(graph), lambda node, resume: kept.append(len(runner.live)))
    graph.run_nodes(Inputs(x), runner)
    assert kept == [1] * 6
