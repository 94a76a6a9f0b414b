"""Observers against torch's own reductions of the same tensor: medians of ratios, one thread.

Run by hand: ``python benchmarks/bench_observers.py``. min_max is held against ``torch.aminmax``,
the kinds that make a histogram against one ``torch.histc``. Both are timed in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from qtune.quantizers.observers import OBSERVERS

SHAPE = (1, 64, 112, 112)
REPEATS = 41
BINS = 2048
AIMS = {"min_max": 2.0, "percentile": 3.0, "mse": 3.0, "kl": 3.0, "mix": 3.0}
ARGUMENTS = {"fixed_scale": {"scale": 0.1}, "clip": {"clip_value": 3.0}}


def ratio(run: Callable[[], object], against: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds of ``run``, and its median ratio to ``against``."""
    run(), against()
    times, ratios = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        middle = time.perf_counter()
        against()
        end = time.perf_counter()
        times.append((middle - start) * 1e3)
        ratios.append((middle - start) / (end - middle))
    return statistics.median(times), statistics.median(ratios)


def main() -> None:
    """Print one line for each observer."""
    torch.set_num_threads(1)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    print(f"{'observer':<12} {'ms':>7} {'ratio':>6}  aim")
    for name, kind in OBSERVERS.items():
        observer = kind(**ARGUMENTS.get(name, {}))
        is_range = name in ("min_max", "fixed_scale", "clip")
        other = (lambda: torch.aminmax(x)) if is_range else (lambda: torch.histc(x, BINS))
        milliseconds, found = ratio(lambda kept=observer: kept(x), other)
        aim = f"{AIMS[name]:.0f}" if name in AIMS else "-"
        against = "aminmax" if is_range else "histc"
        print(f"{name:<12} {milliseconds:7.2f} {found:6.2f}  {aim} times {against}")


if __name__ == "__main__":
    main()
