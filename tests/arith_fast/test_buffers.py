"""Large results lie on memory that is used again."""

import threading

import torch

from qtune.arith_fast import buffers
from qtune.arith_fast.buffers import SMALL, _Pool


def test_a_piece_is_used_again_when_its_tensor_is_gone():
    pool = _Pool()
    first = pool.take(SMALL)
    address = first.data_ptr()
    del first
    assert pool.take(SMALL).data_ptr() == address


def test_a_view_keeps_the_piece():
    pool = _Pool()
    view = pool.take(SMALL).view(torch.int16)[3:5]
    view.fill_(7)
    pool.take(SMALL).fill_(1)
    assert view.tolist() == [7, 7]


def test_living_tensors_never_overlap():
    pool, alive = _Pool(), []
    generator = torch.Generator().manual_seed(0)
    for step in range(300):
        size = int(torch.randint(SMALL, 8 * SMALL, (), generator=generator))
        alive.append((pool.take(size).fill_(step % 251), step % 251))
        while len(alive) > 5:
            place = int(torch.randint(0, len(alive), (), generator=generator))
            tensor, value = alive.pop(place)
            assert bool((tensor == value).all())
            del tensor
    assert all(bool((tensor == value).all()) for tensor, value in alive)


def test_repeated_runs_need_little_more_than_what_lives_at_once():
    """Three neighbours live at once, at most 15; the block settles there, plus a sixteenth."""
    pool, sizes = _Pool(), [4 * SMALL, 9 * SMALL, 2 * SMALL, 3 * SMALL, 7 * SMALL]
    for _ in range(4):
        before = None
        for size in sizes:
            before = (pool.take(size), before[0] if before else None)
        del before
    pool.take(1)
    total = sum(len(block.memory) for block in pool._blocks)
    assert total <= 15 * SMALL * 17 / 16


def test_threads_share_the_memory():
    wrong = []

    def work(value):
        for _ in range(50):
            tensor = buffers.empty((SMALL,), torch.uint8).fill_(value)
            if not bool((tensor == value).all()):
                wrong.append(value)

    runners = [threading.Thread(target=work, args=(value,)) for value in (1, 2, 3)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert not wrong


def test_maps_are_in_channels_last():
    assert buffers.empty_map((2, 3, 200, 200), torch.int16).is_contiguous(
        memory_format=torch.channels_last
    )
    assert buffers.empty_map((2, 3), torch.uint8).is_contiguous()
