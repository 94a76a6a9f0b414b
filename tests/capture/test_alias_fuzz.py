"""Random programs of views and changes in place: right in both readings, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from qtune.errors import CaptureError

from .replay import assert_replays
from .test_aliases import data

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda t: t[0],
    "rows": lambda t: t[1:],
    "columns": lambda t: t[..., :2],
    "step": lambda t: t[..., ::2],
    "select": lambda t: t.select(-1, 1),
    "narrow": lambda t: t.narrow(-1, 0, 2),
    "flat": lambda t: t.reshape(-1),
    "extra": lambda t: t.unsqueeze(0),
    "turned": lambda t: t.transpose(0, -1),
    "detached": lambda t: t.detach(),
    "part": lambda t: t.chunk(2, -1)[0],
    "copy": lambda t: t.clone(),
    "same": lambda t: t.contiguous(),
}
CHANGES: dict[str, Callable[[Tensor], object]] = {
    "add": lambda t: t.add_(1),
    "multiply": lambda t: t.mul_(2),
    "relu": lambda t: torch.relu_(t),
    "fill": lambda t: t.__setitem__(..., 3.0),
    "assign": lambda t: t.__setitem__(0, t[0] * 2),
    "augmented": lambda t: t.__setitem__(0, t[0].__iadd__(1)),
    "negative": lambda t: torch.neg(t, out=t),
}


class Program(nn.Module):
    """Steps of (tensor to take, what to do); every tensor made is used in the result."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.steps = [
            (chance.random(), chance.choice([*VIEWS, *CHANGES, *CHANGES]), chance.random() < 0.3)
            for _ in range(8)
        ]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made, results = [x * 1, torch.zeros(3, 3) + 1], []
        for place, name, is_used in self.steps:
            tensor = made[int(place * 997) % len(made)]
            if name in VIEWS and tensor.dim():
                made.append(VIEWS[name](tensor))
            elif tensor.dim() and tensor.shape[0]:
                CHANGES.get(name, CHANGES["add"])(tensor)
            if is_used:
                results.append(made[-1] * 5)
        return (*results, *made, *(tensor + 1 for tensor in made))


@pytest.mark.parametrize("block", range(4))
def test_random_programs_are_right_or_refused(block: int) -> None:
    refused = 0
    for seed in range(block * 25, block * 25 + 25):
        try:
            assert_replays(Program(seed), data(3, 3), data(3, 3) * 2)
        except CaptureError:
            refused += 1
    assert refused <= 10  # most of them can be followed
