"""Masks that a model writes into its scores before a softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.ops.whole import Calls, check, whole

G = torch.Generator().manual_seed(9)
S = torch.randn(2, 4, 5, generator=G) * 3
FREE = (torch.rand(4, 5, generator=G) > 0.5).index_fill(1, torch.tensor([1]), True)
FLOATS = torch.zeros(4, 5).masked_fill(~FREE, -torch.inf)
BAR = 0.02
"""One int8 rounding of the scores (3 at most 12, step 0.1, so 5 % of a weight) and one of the
result; weights here are far from their steepest point."""


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", FLOATS)

    def forward(self, s: Tensor) -> Tensor:
        return torch.softmax(s + self.mask, -1)


def causal(s: Tensor) -> Tensor:
    mask = torch.triu(torch.full((4, 5), -torch.inf), 1)
    return (s + mask).softmax(-1)


@pytest.mark.parametrize(
    "call",
    [
        lambda s, m: s.masked_fill(~m, -torch.inf).softmax(-1),
        lambda s, m: torch.softmax(torch.where(m, s, torch.tensor(-1e9)), -1),
        lambda s, m: torch.softmax(torch.where(m.logical_not(), -torch.inf, s), -1),
        lambda s, m: s.masked_fill(~m, -1e9).masked_fill(~m, -torch.inf).softmax(-1),
        lambda s, m: (torch.zeros(4, 5).masked_fill(~m, -torch.inf) + s).softmax(-1),
        lambda s, m: (s + torch.where(m, 0.0, -torch.inf)).softmax(-1),
        lambda s, m: (s + torch.where(~m, torch.tensor(-torch.inf), torch.tensor(0.0))).softmax(-1),
    ],
)
def test_a_written_mask_weighs_exactly_nothing(call: Any) -> None:
    net = check(Calls(call), S, FREE, bar=BAR)
    (result,) = net.integer()
    assert torch.equal(result * ~FREE, torch.zeros_like(result))
    assert not [name for name in net.names if "masked_fill" in name or "where" in name]


@pytest.mark.parametrize("model", [Constant(), Calls(causal)])
def test_an_added_constant_that_blocks_is_a_mask(model: nn.Module) -> None:
    net = check(model, S, bar=BAR)
    assert not [name for name in net.names if "_add_" in name]


def test_other_values_are_no_masks() -> None:
    net = whole(Calls(lambda s, m: s.masked_fill(~m, -5.0).softmax(-1)), S, FREE)
    assert "_generated_masked_fill_0" in net.names


def test_a_mask_that_others_read_stays_for_them() -> None:
    def call(s: Tensor, m: Tensor) -> Any:
        filled = s.masked_fill(~m, -2e4)
        return filled.softmax(-1), filled[..., 1:2]

    net = whole(Calls(call), S, FREE)
    assert "_generated_masked_fill_0" in net.names
    assert torch.equal(net.integer()[0] * ~FREE, torch.zeros(2, 4, 5))


KV = torch.randn(2, 5, 3, generator=G)
ATTENTION_BAR = 0.06
"""An int8 rounding of values and result (2 at most 3, step 0.025 each) over the weights'."""
FULL = FREE.index_fill(0, torch.tensor([2]), False)
"""The third row has no free position."""


@pytest.mark.parametrize(
    "call",
    [
        lambda s, m: s.masked_fill(~m, torch.finfo(s.dtype).min).softmax(-1),
        lambda s, m: torch.softmax(torch.where(m, s, -1e9), -1),
        lambda s, m: (torch.zeros(4, 5).masked_fill(~m, -3e38) + s).softmax(-1),
    ],
)
def test_a_full_row_of_a_finite_number_weighs_all_alike(call: Any) -> None:
    net = check(Calls(call), S, FULL, bar=BAR)
    (result,) = net.integer()
    assert torch.equal(result[:, 2], result[:, 2, :1].expand(2, 5))
    assert float((result[:, 2] - 0.2).abs().max()) < BAR


def test_a_full_row_of_infinities_gives_zeros() -> None:
    call = Calls(lambda s, m: s.masked_fill(~m, -torch.inf).softmax(-1))
    net = whole(call, S, FULL, instead_of_nan=0.0)
    (result,) = net.integer()
    assert not result[:, 2].any()


def test_attention_over_a_full_row_of_a_finite_number_weighs_all_alike() -> None:
    def attend(s: Tensor, m: Tensor) -> Tensor:
        mask = torch.zeros(4, 5).masked_fill(~m, torch.finfo(s.dtype).min)
        return F.scaled_dot_product_attention(s[:, :, :4], s.transpose(1, 2)[:, :, :4], KV, mask)

    check(Calls(attend), S, FULL, bar=ATTENTION_BAR)
