"""scaled_dot_product_attention: masks of every kind, and one set of bits on every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.errors import GuardError
from tests.ops.whole import Calls, check, relative, whole

G = torch.Generator().manual_seed(3)
Q = torch.randn(2, 4, 5, 6, generator=G)
K, V = torch.randn(2, 4, 7, 6, generator=G), torch.randn(2, 4, 7, 6, generator=G)
FREE = (torch.rand(5, 7, generator=G) > 0.4).index_fill(1, torch.tensor([0]), True)
BAR = 0.03
"""Three int8 roundings in a row (operands, weights, values), each half of 1 / 127.5 of its range,
and sums of seven of them."""


def attention(**options: Any) -> nn.Module:
    return Calls(lambda *args: F.scaled_dot_product_attention(*args, **options))


def test_without_mask() -> None:
    net = check(attention(), Q, K, V, bar=BAR)
    parts = [n.partition(".")[2] for n in net.names if n.startswith("_generated_scaled")]
    softmax = [f"softmax.{name}" for name in ("max", "sub", "exp", "sum", "reciprocal", "mul")]
    assert parts == ["scale", "transpose", "scores", *softmax, "values"]


def test_a_scale_and_a_causal_mask() -> None:
    net = check(attention(scale=0.3, is_causal=True), Q, K, V, bar=BAR)
    with pytest.raises(GuardError, match="causal mask is made for 7 keys"):
        net.calib(Q, K[:, :, :6], V[:, :, :6])


def test_grouped_heads() -> None:
    check(attention(enable_gqa=True), Q, K[:, :2], V[:, :2], bar=BAR)


def test_a_bool_mask() -> None:
    net = check(attention(), Q, K, V, FREE, bar=BAR)
    plain = whole(attention(), Q, K, V)
    name = "_generated_scaled_dot_product_attention_0.softmax"
    masked = net.calib.get_submodule(f"{name}.free").activation_post_process
    scores = plain.calib.get_submodule(name.replace("softmax", "scores")).activation_post_process
    assert float(masked.scale) <= float(scores.scale), "the mask must not widen the scores' range"


def test_blocked_positions_count_exactly_nothing() -> None:
    """However large their values are."""
    loud = V.clone()
    loud[:, :, 3] = 50.0
    free = torch.ones(5, 7, dtype=torch.bool)
    free[:, 3] = False
    masked = whole(attention(), Q, K, loud, free)
    silent = loud.clone()
    silent[:, :, 3] = -50.0
    feed = masked.quantized[0]
    assert torch.equal(feed(Q, K, loud, free), feed(Q, K, silent, free))


@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min, -1e9])
def test_a_float_mask_that_only_blocks_equals_the_bool_mask(low: float) -> None:
    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.zeros(5, 7).masked_fill(~FREE, low))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, self.mask)

    net, right = whole(Buffered(), Q, K, V), whole(attention(), Q, K, V, FREE)
    assert torch.equal(net.integer()[0], right.integer()[0])
    net.calib.get_buffer("mask").fill_(0.5)
    with pytest.raises(GuardError, match="the mask holds only 0 and values that block"):
        net.calib(Q, K, V)


def test_a_float_mask_with_values_is_split() -> None:
    bias = torch.randn(2, 1, 5, 7, generator=G).masked_fill(~FREE, -torch.inf)
    net = check(attention(), Q, K, V, bias, bar=BAR, pure=False)
    assert all("pass a bool mask" in op.reason for op in net.calib.float_ops)
    added = net.calib.get_submodule("_generated_scaled_dot_product_attention_0.bias")
    # Scores and biases of this size, not -inf: at most 20.
    assert float(added.activation_post_process.scale) < 20 / 32767.5


def test_a_learned_bias_is_added() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(4, 5, 7))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, self.bias)

    check(Biased(), Q, K, V, bar=BAR)


def test_a_row_without_free_position_gives_zeros() -> None:
    free = FREE.clone()
    free[2] = False
    net = whole(attention(), Q, K, V, free)
    (result,), (right,) = net.integer(), net.right()
    assert torch.equal(result[:, :, 2], torch.zeros(2, 4, 6))
    assert relative(result, right.nan_to_num()) < BAR
