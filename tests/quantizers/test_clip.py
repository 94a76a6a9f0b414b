import numpy as np
import pytest
import torch

from qtune.arith.moments import deviation_range
from qtune.errors import ArgumentError
from qtune.quantizers.clip import ClipObserver, ClipStdObserver
from qtune.quantizers.scope import forward_scope


def test_clip_cuts_each_batch_before_the_average():
    observer = ClipObserver(2.0, averaging_constant=0.5)
    observer(torch.tensor([1.0, -5.0]))
    assert observer.absmax[1].tolist() == [2.0]
    observer(torch.tensor([1.0]))
    assert observer.absmax[1].tolist() == [1.5]
    assert observer.min_val.tolist() == [-2.0], "min_val stays that of the data: -5, then 1"


def test_clip_leaves_smaller_data_alone():
    observer = ClipObserver(clip_value=3, ch_axis=0)
    observer(torch.tensor([[1.0, -0.5], [9.0, 1.0]]))
    assert observer.absmax[2].tolist() == [1.0, 3.0]


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "1", True])
def test_clip_value_must_be_positive(value):
    with pytest.raises(ArgumentError, match="clip_value"):
        ClipObserver(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.half, torch.bfloat16, torch.double])
@pytest.mark.parametrize("factor", [0.5, 3.0])
@pytest.mark.parametrize("infinity", [False, True])
def test_clip_std_is_mean_plus_deviations(dtype, factor, infinity):
    data = torch.from_numpy(np.random.default_rng(0).normal(-1, 2, (3, 500))).to(dtype)
    if infinity:
        data[1, 7] = torch.inf
    observer, per_channel = ClipStdObserver(factor), ClipStdObserver(factor, ch_axis=0)
    observer(data)
    per_channel(data)
    # 1e-6: two ways of summing in float64, rounded once to float32
    assert observer.absmax[1].item() == pytest.approx(
        float(deviation_range(data.double().numpy(), factor)), rel=1e-6
    )
    expected = [float(deviation_range(row.double().numpy(), factor)) for row in data]
    assert per_channel.absmax[1].tolist() == pytest.approx(expected, rel=1e-6)


def test_clip_std_of_doubles_beyond_float32_is_finite():
    data = torch.tensor([1e300, -torch.inf, 1.0], dtype=torch.double)
    observer = ClipStdObserver()
    observer(data)
    assert observer.absmax[1].item() == torch.finfo(torch.float32).max


def test_clip_std_takes_calls_of_one_forward_as_one_batch():
    data = torch.randn(400, generator=torch.Generator().manual_seed(0))
    together, union = ClipStdObserver(1.0), ClipStdObserver(1.0)
    with forward_scope():
        together(data[:100] * 1.0)
        together(data[100:])
    union(data)
    # sums in another order
    assert together.absmax[1].item() == pytest.approx(union.absmax[1].item(), rel=1e-6)


def test_clip_std_scale_must_be_positive():
    with pytest.raises(ArgumentError, match="std_scale"):
        ClipStdObserver(std_scale=0)
