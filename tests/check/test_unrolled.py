"""Time steps of one recurrent layer are one call of its parts; two calls of the layer are two."""

from __future__ import annotations

import torch
from torch import nn

import qtune
from qtune.check.qat_model import check_qat_model
from qtune.nn.prepared import PreparedModel
from qtune.quantization import prepare
from qtune.testing import assert_no_shared_ops, assert_no_unfused

STEPS = torch.randn(2, 6, 4)


class Once(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Twice(Once):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1] + self.rnn(x * 2)[0][:, -1])


def prepared(model: nn.Module) -> PreparedModel:
    with qtune.march.march("nash-e"):
        return prepare(model.eval(), STEPS)


def test_steps_of_one_layer_are_no_sharing() -> None:
    model = prepared(Once())
    assert set(check_qat_model(model, STEPS).call_counts.values()) == {1}
    assert not model.unfused
    assert_no_shared_ops(model, inputs=STEPS)
    assert_no_unfused(model, inputs=STEPS)


def test_a_layer_that_is_called_twice_is_shared() -> None:
    model = prepared(Twice())
    counts = check_qat_model(model, STEPS).call_counts
    parts = {count for name, count in counts.items() if name.startswith("rnn.c_l0")}
    assert parts == {2}
    assert counts["head"] == 1
