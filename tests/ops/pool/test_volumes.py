"""Pools of volumes: maxima are exact, averages within the steps of two pools."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.movement.spelling import operator_of, operator_of_module
from tests.ops.steps import steps_apart
from tests.ops.whole import quiet, whole

__all__ = ["quiet"]

MAXIMA: list[nn.Module] = [
    nn.MaxPool3d(2),
    nn.MaxPool3d((3, 2, 1), stride=(2, 1, 1), padding=(1, 1, 0), dilation=(1, 2, 1)),
    nn.MaxPool3d(3, stride=2, ceil_mode=True),
    nn.AdaptiveMaxPool3d((2, 3, 1)),
    nn.AdaptiveMaxPool3d((None, 2, 2)),
]
AVERAGES: list[nn.Module] = [
    nn.AvgPool3d(2),
    nn.AvgPool3d((3, 2, 1), stride=(2, 1, 1), padding=(1, 1, 0), count_include_pad=False),
    nn.AvgPool3d(3, stride=2, padding=1, ceil_mode=True),
    nn.AvgPool3d(2, divisor_override=5),
    nn.AdaptiveAvgPool3d(1),
    nn.AdaptiveAvgPool3d((2, 3, None)),
]


@pytest.mark.parametrize("pool", MAXIMA, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_maxima_of_volumes_are_exact(pool: nn.Module, batched: bool) -> None:
    shape = (2, 3, 5, 6, 7) if batched else (3, 5, 6, 7)
    result = whole(nn.Sequential(pool), torch.randn(*shape))
    assert steps_apart(result) == 0.0
    assert result.integer()[0].shape == result.right()[0].shape


@pytest.mark.parametrize("pool", AVERAGES, ids=str)
def test_averages_of_volumes_stay_within_a_step(pool: nn.Module) -> None:
    """The planes' averages are int16: what they round is lost in the one int8 step of the last."""
    result = whole(nn.Sequential(pool), torch.randn(2, 3, 5, 6, 7))
    assert steps_apart(result) <= 1.0
    assert result.integer()[0].shape == result.right()[0].shape


def test_averages_of_one_unbatched_volume() -> None:
    result = whole(nn.Sequential(nn.AvgPool3d(2)), torch.randn(3, 4, 6, 6))
    assert steps_apart(result) <= 1.0
    assert result.integer()[0].shape == (3, 2, 3, 3)


def test_maxima_of_one_axis_to_a_size_are_exact() -> None:
    assert steps_apart(whole(nn.Sequential(nn.AdaptiveMaxPool1d(3)), torch.randn(2, 3, 8))) == 0.0


def test_spellings() -> None:
    x = torch.randn(1, 2, 4, 4, 4)
    assert operator_of(lambda: F.max_pool3d(x, 2)) == "max_pool3d"
    assert operator_of(lambda: torch.max_pool3d(x, 2)) == "max_pool3d"
    assert operator_of(lambda: F.avg_pool3d(x, 2)) == "avg_pool3d"
    assert operator_of(lambda: F.adaptive_avg_pool3d(x, 2)) == "adaptive_avg_pool3d"
    assert operator_of(lambda: F.adaptive_max_pool3d(x, 2)) == "adaptive_max_pool3d"
    line = torch.randn(1, 2, 8)
    assert operator_of(lambda: F.adaptive_max_pool1d(line, 2)) == "adaptive_max_pool1d"
    for module in (*MAXIMA, *AVERAGES):
        name = operator_of_module(module, x)
        assert name.replace("_", "") == type(module).__name__.lower()


@pytest.mark.parametrize(
    ("module", "axes"),
    [
        (nn.MaxPool3d(2, return_indices=True), 3),
        (nn.AdaptiveMaxPool3d(2, return_indices=True), 3),
        (nn.AdaptiveMaxPool1d(2, return_indices=True), 1),
    ],
    ids=lambda value: "" if isinstance(value, int) else str(value),
)
def test_indices_are_refused_by_name(module: nn.Module, axes: int) -> None:
    with pytest.raises(NotImplementedError, match="return_indices"):
        operator_of_module(module, torch.randn(1, 2, *[4] * axes))
