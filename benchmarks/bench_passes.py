"""Integer passes against a memory copy that reads and writes as many bytes: medians of ratios.

Run by hand: ``python benchmarks/bench_passes.py [threads]``; ``QTUNE_NATIVE=off`` measures torch's
own operators. The pass and its copy are timed in turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from qtune.arith_fast.capability import guard, provenance
from qtune.arith_fast.fake_quantize import quantize_held
from qtune.arith_fast.held import to_held
from qtune.arith_fast.pool import max_pool2d_held, window_sum
from qtune.arith_fast.requantize import Requantizer
from qtune.arith_fast.table import lut8, lut16
from qtune.dtype import qint8, qint16

SHAPE = (8, 64, 112, 112)
REPEATS = 25

Pass = tuple[Callable[[], torch.Tensor], list[torch.Tensor]]


def ratio(run: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> tuple[float, float]:
    """Median seconds of a pass, and its median ratio to the copy of the same bytes."""
    size = sum(x.numel() * x.element_size() for x in (*inputs, run()))
    source = torch.zeros(size // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    target.copy_(source)
    times, ratios = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        middle = time.perf_counter()
        target.copy_(source)
        end = time.perf_counter()
        times.append(middle - start)
        ratios.append((middle - start) / (end - middle))
    return statistics.median(times), statistics.median(ratios)


def passes() -> dict[str, Pass]:
    """Each pass as a call and the tensors it reads."""
    rng = np.random.default_rng(0)
    a, b = (to_held(rng.integers(-128, 128, SHAPE), qint8) for _ in range(2))
    wide = to_held(rng.integers(qint16.qmin, qint16.qmax + 1, SHAPE), qint16)
    acc = torch.from_numpy(rng.integers(-(1 << 22), 1 << 22, SHAPE).astype(np.int32))
    acc = acc.contiguous(memory_format=torch.channels_last)
    m, n = rng.integers(1 << 14, 1 << 15, 64), rng.integers(28, 31, 64)
    channels = Requantizer(m, n, m, lo=-128, hi=127, out=qint8)
    codes = Requantizer(20000, 15, lo=-128, hi=127, out=qint8, bound=128, zero=128)
    total = Requantizer(1, 16, -128 * 50000, lo=-128, hi=127, out=qint8, bound=1 << 24)
    product = Requantizer(20000, 22, lo=-128, hi=127, out=qint8, bound=1 << 14)
    table = lut8(rng.integers(-128, 128, 256))
    long = _long_table()
    images = torch.randn(8, 3, 224, 224)
    return {
        "requantize int32, per channel": (lambda: channels(acc), [acc]),
        "requantize int8 codes": (lambda: codes(a), [a]),
        "add int8": (lambda: total.weighted_sum([a, b], [20000, 30000]), [a, b]),
        "mul int8": (lambda: product.product(a, b), [a, b]),
        "table int8": (lambda: table(a), [a]),
        "table int16": (lambda: long(wide), [wide]),
        "max_pool2d 3x3, stride 2": (lambda: max_pool2d_held(a, (3, 3), (2, 2), (1,) * 4), [a]),
        "max_pool2d 2x2, stride 2": (lambda: max_pool2d_held(a, (2, 2), (2, 2)), [a]),
        "window sums 2x2, stride 2": (lambda: window_sum(a, (2, 2), (2, 2)), [a]),
        "global sums": (lambda: window_sum(a, SHAPE[2:], SHAPE[2:]), [a]),
        "quantize float32, NCHW": (lambda: quantize_held(images, 0.02, qint8), [images]),
    }


def _long_table() -> Callable[[torch.Tensor], torch.Tensor]:
    from qtune.arith.table import segment_table

    return lut16(segment_table(np.tanh, 1e-4, 3e-5, qint16.qmin, qint16.qmax))


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    print(provenance())
    with guard():
        for name, (run, inputs) in passes().items():
            seconds, times = ratio(run, inputs)
            print(f"{name:32}{1e3 * seconds:8.2f} ms{times:8.2f} x a copy")


if __name__ == "__main__":
    main()
