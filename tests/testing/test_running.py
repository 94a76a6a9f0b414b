"""Models that assertions run: the same numbers on both sides, and nothing of it stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qtune.testing import Stages, assert_consistency, assert_no_saturation, assert_sensitivity_below

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(1)


class Counting(nn.Module):
    """Returns a buffer that every forward writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.runs


def test_both_sides_draw_the_same_random_numbers() -> None:
    state = torch.get_rng_state()
    assert assert_consistency(Noisy(), Noisy(), inputs=[X, X], max_atol=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_every_batch_starts_from_the_state_that_the_model_is_in() -> None:
    model = Counting()
    result = assert_consistency(model, model, inputs=[X, X], max_atol=0)
    assert result.metrics["atol"] == 0
    assert model.runs.item() == 0


def test_an_error_of_the_model_says_on_which_batch() -> None:
    narrow = nn.Conv2d(1, 1, 1)
    with pytest.raises(RuntimeError) as caught:
        assert_consistency(narrow, narrow, inputs=[X[:, :1], X], max_atol=0)
    assert caught.value.__notes__ == [
        "raised on batch 1 of inputs, by model(Tensor[4, 3, 8, 8])",
    ]


def test_so_do_those_of_single_ports(stages: Stages) -> None:
    wide = torch.zeros(4, 5, 8, 8)
    with pytest.raises(RuntimeError) as caught:
        assert_sensitivity_below(stages.calib, [X, wide], limit=1)
    assert caught.value.__notes__[-1].startswith(
        "raised on batch 1 of inputs, by model(Tensor[4, 5"
    )
    with pytest.raises(RuntimeError) as caught:
        assert_no_saturation(stages.calib, inputs=wide, max_share=1)
    assert caught.value.__notes__[-1].startswith(
        "raised on batch 0 of inputs, by model(Tensor[4, 5"
    )
