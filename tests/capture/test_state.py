"""State that forward changes in place, after prepare has made operators of the changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from qtune.capture import capture
from qtune.march import march
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize


@pytest.fixture(autouse=True)
def _nash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    with march("nash-e"):
        yield


class Average(nn.Module):
    def __init__(self, update: Callable[[nn.Module, Tensor], None]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.linear, self.update = nn.Linear(4, 4), update

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.update(self, y.detach().mean(0))
        self.count += 1
        return y + self.mean


def decayed(model: nn.Module, new: Tensor) -> None:
    model.mean.mul_(0.5).add_(new)


def replaced(model: nn.Module, new: Tensor) -> None:
    model.mean = model.mean * 0.5 + new


def in_part(model: nn.Module, new: Tensor) -> None:
    model.mean[1:] = new[1:]


def copied(model: nn.Module, new: Tensor) -> None:
    model.mean.copy_(model.mean * 0.5 + new)


def through_a_view(model: nn.Module, new: Tensor) -> None:
    model.mean.view(2, 2).add_(new.view(2, 2))


@pytest.mark.parametrize("update", [decayed, replaced, in_part, copied, through_a_view])
def test_state_moves_on_as_in_the_float_model(update: Callable[[nn.Module, Tensor], None]) -> None:
    torch.manual_seed(0)
    model = Average(update).eval()
    data = [torch.randn(3, 4) for _ in range(3)]
    recorded = capture(copy.deepcopy(model), data[0])
    prepared = prepare(model, data[0]).eval()
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    for x in data:
        with torch.no_grad():
            expected = model(x)
            assert torch.equal(recorded(x), expected)
            assert torch.equal(prepared(x), expected)
        for copy_of in (recorded, prepared):
            assert torch.equal(copy_of.get_buffer("mean"), model.mean)
            assert torch.equal(copy_of.get_buffer("count"), model.count)


def test_state_that_changes_is_named_as_float() -> None:
    prepared = prepare(Average(decayed).eval(), torch.randn(3, 4))
    assert [op.reason for op in prepared.float_ops if "keeps no state" in op.reason]
