"""Layers that return the very tensor they got are calls of their own in the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture import capture
from qtune.ops.quant.stubs import QuantStub

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


class Handed(nn.Module):
    """Uses ``x`` behind every layer that hands it on."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = QuantStub(), QuantStub()
        self.drop, self.same = nn.Dropout(0.5), nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = (self.one(x), self.two(x), self.drop(x), self.same(x), x.contiguous(), x.float())
        return tuple(part + 1 for part in (*parts, x))


def operands(graph: Any, target: str) -> list[str]:
    return [str(node.args[0]) for node in graph.nodes if node.target == target]


def test_a_later_use_of_the_operand_is_no_use_of_the_result() -> None:
    graph = capture(Handed().eval(), X).graph
    for target in ("one", "two", "drop", "same", "contiguous", "float"):
        assert operands(graph, target) == ["x"]
    behind = operands(graph, "add")
    assert behind == ["one", "two", "drop", "same", "contiguous", "float_1", "x"]


def test_recorded_in_eval_mode_it_trains_as_the_float_model_does() -> None:
    model = Handed().eval()
    recorded = capture(model, X).train()
    torch.manual_seed(3)
    expected = model.train()(X)
    torch.manual_seed(3)
    assert all(map(torch.equal, recorded(X), expected))
    assert not torch.equal(expected[2], expected[-1])


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.act = nn.Dropout(0.5), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 1
        z = self.drop(y)
        z += 2
        w = self.act(y)
        return y, z, w


def test_what_is_changed_through_the_result_changes_the_operand() -> None:
    model = InPlace().eval()
    recorded = capture(model, X)
    for data in (X, -X):
        assert all(map(torch.equal, recorded(data), model(data)))
