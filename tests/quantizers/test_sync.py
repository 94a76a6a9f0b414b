"""Observers over two processes (gloo)."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from qtune.errors import NonFiniteError
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.kl import KLObserver
from qtune.quantizers.observer import MinMaxObserver

from ..ranks import on_ranks
from .kinds import PER_CHANNEL

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    first = torch.randn(2, 400, generator=generator) * (rank + 1)
    return [first, first[:0] if rank else first * 3]


def observers(synchronize):
    return {
        "per_channel": MinMaxObserver(ch_axis=1, channel_len=400, is_sync_quantize=synchronize),
        **{name: kind(is_sync_quantize=synchronize) for name, kind in PER_CHANNEL.items()},
        "kl_per_channel": KLObserver(ch_axis=0, is_sync_quantize=synchronize),
    }


def trained_in_parallel(rank):
    """The scale and the state of one fake-quantize after three steps under DDP."""
    torch.manual_seed(0)
    quantizer = FakeQuantize(MinMaxObserver, is_sync_quantize=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), quantizer))
    torch.manual_seed(rank + 1)
    for _ in range(3):
        model(torch.randn(3, 4)).sum().backward()
    return quantizer.scale, quantizer.state.name


def worker(rank):
    found = {}
    for name, observer in observers(True).items():
        for batch in batches(rank):
            observer(batch)
        found[name] = dict(observer.named_buffers())
    try:
        MinMaxObserver(is_sync_quantize=True)(torch.tensor([torch.nan if rank else 1.0]))
        found["nan"] = "no error"
    except NonFiniteError:
        found["nan"] = "NonFiniteError"
    found["ddp"] = trained_in_parallel(rank)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(worker, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("kind", observers(False))
def test_all_ranks_have_the_statistics_of_all_data(ranks, kind):
    """A27: a rank without data takes part too. Histograms are those of one process, count by count.

    clip_std sums floats, so its last digit may depend on who summed what.
    """
    alone = observers(False)[kind]
    for first, second in zip(batches(0), batches(1), strict=True):
        along_rows = kind == "kl_per_channel" and second.numel()
        alone(torch.cat([first, second], dim=1 if along_rows else 0))
    ones, others = (rank[kind] for rank in ranks)
    assert {name: b.tolist() for name, b in ones.items()} == {
        name: b.tolist() for name, b in others.items()
    }
    for name, expected in alone.named_buffers():
        if kind == "clip_std":
            # sums of squares in another order
            torch.testing.assert_close(ones[name], expected, rtol=1e-6, atol=0)
        else:
            assert torch.equal(ones[name], expected), name


def test_nan_on_one_rank_raises_on_all(ranks):
    assert [rank["nan"] for rank in ranks] == ["NonFiniteError"] * 2


def test_ranks_under_ddp_agree_on_scale_and_state(ranks):
    """A27."""
    (first, state), (second, other) = (rank["ddp"] for rank in ranks)
    assert torch.equal(first, second)
    assert state == other == "QAT"


def test_sync_without_a_process_group_is_local():
    observer = MinMaxObserver(is_sync_quantize=True)
    observer(torch.tensor([2.0]))
    assert observer.max_val.tolist() == [2.0]
