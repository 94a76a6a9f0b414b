"""Running again what a change reaches gives what the whole graph gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from qtune.analysis.downstream import Baseline, same_bits
from qtune.analysis.plan import Plan
from qtune.capture.graph import GraphModel
from qtune.capture.recorder import capture

from .nets import Block

LIMITS = pytest.mark.parametrize("limit", [1 << 30, 0], ids=["cached", "no room"])


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


def baseline_of(graph: GraphModel, x: Tensor, limit: int) -> Baseline:
    with torch.no_grad():
        return Baseline(Plan(graph, channels_last=False), [x], limit)


def calls(model: GraphModel) -> list[fx.Node]:
    return [node for node in model.graph.nodes if node.op.startswith("call")]


def outputs_from_everywhere(baseline: Baseline, graph: GraphModel) -> dict[str, Any]:
    """The results with each call alone shifted by 1, and with the shift taken back."""
    found: dict[str, Any] = {}

    def visit(node: fx.Node) -> None:
        shifted = baseline.changed({node: lambda registers, compute: compute(registers) + 1})
        again = baseline.changed({node: lambda registers, compute: compute(registers) + 1 - 1})
        found[node.name] = shifted, again

    with torch.no_grad():
        baseline.visit(calls(graph), visit)
    return found


def shifted_at(graph: GraphModel, name: str, x: Tensor) -> Tensor:
    with torch.no_grad():
        return graph.run_nodes(x, lambda node, value: value + 1 if node.name == name else value)


@LIMITS
def test_a_change_at_any_node_gives_the_outputs_of_a_whole_run(limit: int) -> None:
    model, x = Block().eval(), torch.rand(2, 3, 8, 8)
    graph = capture(model, x)
    baseline = baseline_of(graph, x, limit)
    assert baseline.resumable
    assert torch.equal(baseline.outputs[0], model(x))
    found = outputs_from_everywhere(baseline, graph)
    assert len(found) == len(calls(graph))
    for name, (shifted, _) in found.items():
        assert torch.equal(shifted[0], shifted_at(graph, name, x))


def test_a_change_that_is_none_gives_the_baseline_itself() -> None:
    x = torch.arange(6.0).reshape(2, 3)  # whole numbers: + 1 - 1 is exact
    graph = capture(nn.Sequential(nn.ReLU(), nn.Flatten()), x)
    found = outputs_from_everywhere(baseline_of(graph, x, 1 << 30), graph)
    assert [again for _, again in found.values()] == [None, None]


@LIMITS
def test_a_changed_run_draws_the_numbers_of_the_first_one(limit: int) -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + torch.rand_like(x)) * torch.rand_like(x)

    x = torch.rand(2, 3)
    graph = capture(Noisy(), x)
    torch.manual_seed(3)
    baseline = baseline_of(graph, x, limit)
    for name, (shifted, _) in outputs_from_everywhere(baseline, graph).items():
        torch.manual_seed(3)
        expected = shifted_at(graph, name, x)
        assert torch.equal(shifted[0], expected)


def test_graphs_that_change_values_in_place_are_told_apart() -> None:
    x = torch.rand(2, 3)
    assert not baseline_of(capture(InPlace(), x), x, 1 << 30).resumable
    assert not baseline_of(capture(InPlace(), x), x, 0).resumable
    assert baseline_of(capture(nn.Linear(3, 3), x), x, 0).resumable


def test_beyond_the_limit_only_values_that_are_needed_later_are_kept() -> None:
    x = torch.rand(2, 4)
    graph = capture(nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)]), x)
    baseline, kept = baseline_of(graph, x, 0), []
    baseline.visit(
        calls(graph), lambda node: kept.append(sum(v is not None for v in baseline.registers))
    )
    assert kept == [2] * 6  # the operator's operand and its result


def test_the_size_of_the_cache_counts_each_memory_once() -> None:
    x = torch.rand(2, 4)
    graph = capture(nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Identity()), x)
    assert baseline_of(graph, x, 32).cached_bytes == 32  # one result, and views of it
    assert not baseline_of(graph, x, 31).is_cached


def test_an_error_names_the_operator() -> None:
    graph = capture(nn.Linear(3, 3), torch.rand(2, 3))
    with pytest.raises(RuntimeError) as caught:
        baseline_of(graph, torch.rand(2, 4), 0)
    assert any("raised by" in note for note in caught.value.__notes__)


def test_same_bits_tells_what_equal_does_not() -> None:
    zero, nan = torch.zeros(2), torch.full((2,), torch.nan)
    assert same_bits(zero, zero.clone())
    assert not same_bits(zero, -zero)  # 1 / x differs
    assert not same_bits(zero, zero.double())
    assert not same_bits(nan, zero)
    assert same_bits((zero, 3, None), (zero.clone(), 3, None))
    assert not same_bits((zero, 3), (zero, 4))
    assert not same_bits((zero,), (zero, zero))
