"""Compiled kernels touch only the memory that is theirs, and only while their caller waits."""

import ctypes
import math
import mmap
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

from qtune.arith_fast import buffers
from qtune.arith_fast.gemm import conv2d_kernel, conv_transpose2d_kernel, linear_kernel
from qtune.arith_fast.held import to_held
from qtune.arith_fast.native import convolve, engine
from qtune.arith_fast.pool import max_pool2d_held, window_sum
from qtune.arith_fast.requantize import Requantizer
from qtune.dtype import qint8, qint16, qint32
from qtune.errors import ArgumentError
from tests.arith_fast.native.conftest import both, threads

PAGE = mmap.PAGESIZE
EDGES = ["start", "end"]


def guarded(shape, dtype, edge):
    """A contiguous tensor whose start or end lies against a page that must not be touched."""
    size = math.prod(shape) * dtype.itemsize
    body = max(1, -(-size // PAGE)) * PAGE
    memory = np.frombuffer(mmap.mmap(-1, body + 2 * PAGE), dtype=np.uint8)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for page in (0, PAGE + body):
        assert protect(memory.ctypes.data + page, PAGE, 0) == 0
    start = PAGE if edge == "start" else PAGE + body - size
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)


def guarded_map(codes, edge):
    """Held codes [N, C, H, W] in channels_last between guards."""
    lines = codes.permute(0, 2, 3, 1)
    return guarded(tuple(lines.shape), codes.dtype, edge).copy_(lines).permute(0, 3, 1, 2)


@pytest.fixture(params=EDGES)
def edge(request, monkeypatch):
    """Results (and copies) lie between guards too: a byte too much ends the process."""
    monkeypatch.setattr(buffers, "empty", lambda s, d: guarded(tuple(s), d, request.param))
    return request.param


def codes_of(rng, dtype, shape):
    return to_held(rng.integers(dtype.qmin, dtype.qmax + 1, size=shape), dtype)


@pytest.mark.parametrize("source", [qint8, qint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 7, 8, 15, 16, 17, 40])
def test_gemms_stay_inside_their_tensors(edge, source, channels):
    rng = np.random.default_rng(channels)
    outputs, addend = 41 - channels, (20000, 7, source)
    x = guarded_map(codes_of(rng, source, (2, channels, 5, 6)), edge)
    w = rng.integers(-128, 128, size=(outputs, channels, 3, 2))
    deep = rng.integers(-128, 128, size=(channels, 1, 3, 2))
    options = {"in_dtype": source, "out_dtype": source, "addend": addend}
    for stride, padding in (
        ((1, 1), (0, 0, 0, 0)),
        ((3, 2), (2, 1, 0, 3)),
        ((2, 1), (-1, 0, 2, 0)),
    ):
        for weights, groups in ((w, 1), (deep, channels), (w[:, :, :1, :1], 1)):
            pair = both(
                lambda v=weights, s=stride, p=padding, g=groups: conv2d_kernel(
                    v, 5, 20000, 24, s, p, groups=g, **options
                )
            )
            shape = pair[1](x, torch.zeros((1, 1, 1, 1), dtype=x.dtype)).shape
            operand = guarded_map(codes_of(rng, source, tuple(shape)), edge)
            assert torch.equal(*(kernel(x, operand) for kernel in pair))
    pair = both(
        lambda: conv_transpose2d_kernel(
            w.swapaxes(0, 1), 5, 20000, 24, (2, 2), in_dtype=source, out_dtype=qint32
        )
    )
    assert torch.equal(*(kernel(x) for kernel in pair))
    rows = guarded((13, channels), x.dtype, edge).copy_(codes_of(rng, source, (13, channels)))
    pair = both(lambda: linear_kernel(w[:, :, 0, 0], 5, 20000, 24, in_dtype=source))
    assert torch.equal(*(kernel(rows) for kernel in pair))


@pytest.mark.parametrize("source", [qint8, qint16])
@pytest.mark.parametrize("channels", [1, 3, 8, 17, 40, 63, 65, 130])
def test_passes_stay_inside_their_tensors(edge, source, channels):
    rng = np.random.default_rng(channels)
    x = guarded_map(codes_of(rng, source, (2, channels, 3, 5)), edge)
    assert torch.equal(*both(lambda: max_pool2d_held(x, (2, 3), (2, 1), (1, 1, 0, 1))))
    assert torch.equal(*both(lambda: window_sum(x, (3, 2), (1, 2), (0, 1, 1, 0))))
    for m in (20000, np.full(channels, 20000)):
        steps = both(lambda m=m: Requantizer(m, 20, 3, lo=-128, hi=127, out=qint8))
        assert torch.equal(*(step(x) for step in steps))
    steps = both(lambda: Requantizer(1, 12, 3, lo=-128, hi=127, out=qint8, bound=1 << 33))
    assert torch.equal(*(step.weighted_sum([x, x], [700, -900]) for step in steps))
    assert torch.equal(*(step.product(x, x) for step in steps))


def test_products_scaled_per_channel_are_exact():
    rng = np.random.default_rng(0)
    a, b = codes_of(rng, qint8, (2, 5, 4, 3)), codes_of(rng, qint8, (2, 5, 4, 3))
    m = rng.integers(1 << 14, 1 << 15, 5)
    steps = both(lambda: Requantizer(m, 20, lo=-128, hi=127, out=qint8, bound=1 << 14))
    for pair in ((a, b), (a.contiguous(), b.contiguous())):
        assert torch.equal(*(step.product(*pair) for step in steps))


@pytest.mark.parametrize(
    "make",
    [
        lambda: conv2d_kernel(np.ones((4, 8, 1, 1), dtype=np.int64), 0, 20000, 24),
        lambda: conv2d_kernel(np.ones((8, 1, 1, 1), dtype=np.int64), 0, 20000, 24, groups=8),
        lambda: conv_transpose2d_kernel(np.ones((8, 4, 1, 1), dtype=np.int64), 0, 20000, 24),
        lambda: linear_kernel(np.ones((4, 8), dtype=np.int64), 0, 20000, 24),
    ],
)
def test_codes_that_a_kernel_was_not_made_for_are_refused(make):
    kernel = make()
    right = torch.zeros((1, 8, 8, 8), dtype=torch.uint8)
    assert kernel(right).numel()
    for wrong in (right[:, :4, :, :4], right.to(torch.int16)):
        with pytest.raises(ArgumentError, match="expected held codes of torch.uint8 with 8 channe"):
            kernel(wrong)
    with pytest.raises(ArgumentError, match="without a fused operand but got one"):
        kernel(right, right)


def test_offsets_beyond_31_bits_are_left_to_torch():
    """Pads count: they are part of the copy that the offsets point into."""
    w = np.ones((1, 15, 1, 1), dtype=np.int64)
    epilogue = conv2d_kernel(w, 0, 20000, 24).epilogue
    for pads, fits in (((0, 0, 0, 0), True), ((6000, 6000, 6000, 6000), False)):
        geometry = convolve.Geometry((3000, 3000), pads, (1, 1))
        kernel = convolve.native_conv(w, qint8, epilogue, geometry)
        assert kernel is not None
        assert kernel.takes((1, 15, 10, 10)) is fits


def test_a_kept_result_survives_later_calls_of_several_kernels_and_threads():
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, size=(2, 20, 24, 3, 3))
    pairs = [both(lambda v=v: conv2d_kernel(v, 0, 20000, 24)) for v in w]
    maps = [codes_of(rng, qint8, (2, 24, 90, 90)) for _ in range(3)]
    expected = [[plain(x) for x in maps] for _, plain in pairs]
    wrong = []

    def work(seed):
        draws, kept = np.random.default_rng(seed), []
        for _ in range(12):
            k, i = int(draws.integers(2)), int(draws.integers(3))
            kept.append((pairs[k][0](maps[i]), expected[k][i]))
            if len(kept) > 3:
                wrong.extend(seed for pair in [kept.pop(0)] if not torch.equal(*pair))
        wrong.extend(seed for pair in kept if not torch.equal(*pair))

    with threads(2):
        runners = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
    assert not wrong


def test_an_interrupted_call_waits_for_the_others_before_it_gives_up_its_memory():
    main, begun, finished = threading.get_ident(), threading.Event(), []

    def run(first, stop):
        if threading.get_ident() == main:
            assert begun.wait(20)
            raise KeyboardInterrupt
        begun.set()
        threading.Event().wait(0.1)
        finished.append(first)

    with threads(2), pytest.raises(KeyboardInterrupt):
        engine._in_threads(run, 2)
    assert len(finished) == 1


def test_kernels_run_while_the_interpreter_ends():
    """A thread of the user may outlive the main one; pools take no work any more then."""
    text = """
        import threading, numpy as np, torch
        from qtune.arith_fast.gemm import conv2d_kernel
        torch.set_num_threads(2)
        kernel = conv2d_kernel(np.ones((8, 8, 3, 3), dtype=np.int64), 0, 20000, 24)
        x = torch.full((1, 8, 40, 40), 129, dtype=torch.uint8)
        first = kernel(x)

        def late():
            threading.main_thread().join()
            print(torch.equal(kernel(x), first))

        threading.Thread(target=late).start()
    """
    call = [sys.executable, "-c", textwrap.dedent(text)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr
