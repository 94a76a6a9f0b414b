"""What processes exchange, on the device that the backend asks for."""

import pytest
import torch
import torch.distributed as dist

from qtune.quantizers import processes
from qtune.quantizers.histogram import HistogramObserver
from qtune.quantizers.observer import MinMaxObserver

from ..ranks import on_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")


def exchanged(rank):
    """Also an observer that does not know its channels before an empty batch comes."""
    observer = MinMaxObserver(ch_axis=1, is_sync_quantize=True)
    observer(torch.ones(0 if rank else 2, 5))
    return {
        "numbers": processes.from_all_processes(10 + rank),
        "sum": processes.reduce_over_processes(torch.tensor([1.5, rank], dtype=torch.float64)),
        "largest": processes.reduce_over_processes(torch.tensor([rank, -rank]), largest=True),
        "several": processes.in_several_processes(),
        "observed": dict(observer.named_buffers()),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(exchanged, tmp_path_factory.mktemp("ranks"))


def test_every_process_gets_the_numbers_the_sum_and_the_largest(ranks):
    for found in ranks:
        assert found["numbers"] == [10, 11]
        assert found["sum"].tolist() == [3.0, 1.0]
        assert found["largest"].tolist() == [1, 0]
        assert found["several"]


def test_an_empty_first_batch_has_the_channels_of_the_others(ranks):
    for found in ranks:
        assert found["observed"]["max_val"].tolist() == [1.0] * 5


def test_alone_there_is_nobody_to_exchange_with():
    assert not processes.in_group()
    assert not processes.in_several_processes()
    assert not processes.in_parallel_forward()


def test_a_backend_for_another_device_gets_a_copy_there(monkeypatch):
    """NCCL takes GPU tensors only; here the device without values stands for the GPU."""
    sent = []
    monkeypatch.setattr(processes, "_DEVICES", {"nccl": "meta"})
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op: sent.append((tensor, op)))
    with pytest.raises(NotImplementedError, match="meta"):  # the way back has nothing to copy
        processes.reduce_over_processes(torch.ones(3))
    ((tensor, op),) = sent
    assert (tensor.device.type, tensor.shape, op) == ("meta", (3,), dist.ReduceOp.SUM)
    sent.clear()
    own = torch.ones(3, device="meta")
    assert processes.reduce_over_processes(own) is own
    assert sent[0][0] is own


def test_what_an_observer_forgets_it_forgets_in_place():
    """DistributedDataParallel holds the buffers."""
    observer = HistogramObserver()
    held = dict(observer.named_buffers())
    observer(torch.linspace(-1, 2, 50))
    observer.forget()
    assert all(buffer is held[name] for name, buffer in observer.named_buffers())
    assert not any(bool(buffer.any()) for buffer in held.values())
    fresh = HistogramObserver()
    for one in (observer, fresh):
        one(torch.linspace(-3, 1, 40))
    assert torch.equal(observer.absmax, fresh.absmax)
    assert torch.equal(observer.histogram, fresh.histogram)
