"""LSTMCell, GRUCell and RNNCell, repeated by the model's own loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ops.whole import check, trains, whole

X = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(7))
BAR = 0.03
"""As for the layers: up to four int8 steps after two int8 feedbacks."""


class Loop(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, *state: Tensor) -> Tensor:
        hidden: Any = None
        if state:
            hidden = state[0] if len(state) == 1 else state
        steps = []
        for t in range(x.shape[1]):
            hidden = self.cell(x[:, t], hidden)
            steps.append(hidden[0] if isinstance(hidden, tuple) else hidden)
        return torch.stack(steps, 1)


@pytest.mark.parametrize(
    "cell",
    [
        lambda: nn.LSTMCell(4, 6),
        lambda: nn.GRUCell(4, 6, bias=False),
        lambda: nn.RNNCell(4, 6),
        lambda: nn.RNNCell(4, 6, nonlinearity="relu"),
    ],
)
def test_cells_in_a_loop(cell: Any) -> None:
    net = check(Loop(cell()), X, bar=BAR)
    assert net.names.count("cell.hh") == 2
    trains(net.model, [X])


def test_a_given_state_is_taken() -> None:
    h, c = torch.randn(2, 6), torch.randn(2, 6)
    check(Loop(nn.LSTMCell(4, 6)), X, h, c, bar=BAR)
    check(Loop(nn.GRUCell(4, 6)), X, h, bar=BAR)


def test_without_batch() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(x)

    check(Once(), X[0, 0], bar=BAR)


def test_names_of_parameters_stay() -> None:
    net = whole(Loop(nn.LSTMCell(4, 6)), X)
    assert set(net.model.state_dict()) <= set(net.calib.state_dict())
