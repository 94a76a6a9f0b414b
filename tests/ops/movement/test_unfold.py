"""unfold and Tensor.unfold: torch's own columns and windows, in floats and in integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.registry import find_function
from tests.ops.movement.spelling import operator_of, operator_of_module
from tests.ops.steps import steps_apart
from tests.ops.whole import quiet, whole

__all__ = ["quiet"]

GEOMETRY: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": (3, 2), "dilation": (1, 2), "padding": 1, "stride": (2, 1)},
    {"kernel_size": 2, "stride": 3, "padding": (0, 2)},
]


@pytest.mark.parametrize("options", GEOMETRY)
def test_columns_are_torchs_in_integers(options: dict[str, Any]) -> None:
    result = whole(nn.Sequential(nn.Unfold(**options)), torch.randn(2, 3, 7, 8))
    assert steps_apart(result) == 0.0
    assert result.right()[0].shape == result.integer()[0].shape


@pytest.mark.parametrize(("dimension", "size", "step"), [(2, 3, 2), (-1, 4, 1), (1, 1, 1)])
def test_windows_are_torchs_in_integers(dimension: int, size: int, step: int) -> None:
    result = whole(lambda x: x.unfold(dimension, size, step), torch.randn(2, 3, 7, 8))
    assert steps_apart(result) == 0.0
    assert result.right()[0].shape == result.integer()[0].shape


def test_patches_of_a_vision_transformer_run_in_integers() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(12, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tiles = x.unfold(2, 2, 2).unfold(3, 2, 2)
            flat = tiles.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
            return torch.relu(self.embed(flat))

    assert steps_apart(whole(Patches(), torch.randn(2, 3, 4, 6))) <= 1.0


def test_spellings() -> None:
    x = torch.randn(1, 2, 4, 4)
    assert operator_of(lambda: F.unfold(x, 2)) == "unfold"
    assert operator_of(lambda: x.unfold(1, 2, 1)) == "sliding_windows"
    assert operator_of_module(nn.Unfold(2), x) == "unfold"


def test_unbatched_maps_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="3 dimensions"):
        operator_of(lambda: F.unfold(torch.randn(2, 4, 4), 2))


def test_fold_has_no_integer_form() -> None:
    """Overlapping windows add up: no operator of the BPU does that; it stays float, by name."""
    assert find_function(F.fold) is None
