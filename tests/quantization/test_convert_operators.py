"""Masks, constants, sizes, shared layers, several results: converted, and joined again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.capture.inputs import as_inputs
from qtune.capture.structure import flatten
from qtune.nn.quantized.recording import Recording
from qtune.quantization import convert, hbdk4

from .flow import calib, prep, run

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([[1, 4, 2, 0], [3, 3, 9, 7]])


class Transformer(nn.Module):
    """An embedding, a position, attention with a mask from sizes, a mask input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(10, 8), nn.Parameter(torch.randn(1, 6, 8))
        self.attend, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        count = ids.shape[1]
        x = self.embed(ids) + self.position[:, :count]
        later = torch.triu(torch.full((count, count), float("-inf")), 1)
        y, _ = self.attend(x, x, x, attn_mask=later, need_weights=False)
        return self.norm(x + y).masked_fill(mask[..., None], 0.0)


class Several(nn.Module):
    """Zeros that are written to, a range, masks as numbers, nested results, an input passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.PReLU(4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.act(self.conv(x))
        z = torch.zeros_like(y)
        z[:, :2] = y[:, 2:]
        wide = F.interpolate(y, size=(y.shape[2] * 2, y.shape[3] * 2), mode="nearest")
        steps = torch.arange(y.shape[3], dtype=y.dtype)
        return {
            "parts": [torch.where(y > 0, y, z), y.unbind(1)[0], wide.amax(1)],
            "numbers": y.argmax(1).float() * 0.5 + steps / 10,
            "same": (x, None, 7, y.new_zeros(2)),
        }


class Shared(nn.Module):
    """One convolution on three scales, and a tensor without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        for _ in range(3):
            x = self.act(self.conv(x))
        return torch.chunk(x * x.mean(), 3, dim=1)


def tensors(result: Any) -> list[Tensor]:
    return [item for item in flatten(result)[0] if isinstance(item, Tensor)]


@pytest.mark.parametrize(
    ("model", "example"),
    [(Transformer, (IDS, IDS > 6)), (Several, (X,)), (Shared, (X,))],
    ids=["transformer", "several", "shared"],
)
def test_it_equals_the_emulated_bpu_and_joins_to_one_module(
    model: type[nn.Module], example: tuple[Tensor, ...]
) -> None:
    prepared = prep(model(), example)
    calib(prepared, [example])
    converted = convert(prepared)
    whole = hbdk4.convert(hbdk4.export(prepared, example))[0]
    expected = tensors(whole(*example))
    got = tensors(run(converted, example))
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))
    joined = Recording(converted, as_inputs(example)).module()[0]
    assert all(map(torch.equal, tensors(joined(*example)), expected))
