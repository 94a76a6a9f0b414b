"""Prepared models against float32: VALIDATION, CALIBRATION and the QAT training step.

Run by hand: ``python benchmarks/bench_training.py [threads] [batch] [rounds] [size]``. ResNet-18
with random weights; float32 eager torch is the unit. The runs of one round follow each other, so
that a busy machine slows all of them; printed are the median and the range of the ratios.

Aims: VALIDATION and CALIBRATION (min_max) at most 1.5, the training step at most 2.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", sys.argv[1] if len(sys.argv) > 1 else "1")

import torch  # noqa: E402
from bench_nets import ResNet18  # noqa: E402
from torch import nn  # noqa: E402

from qtune.arith_fast.capability import provenance  # noqa: E402
from qtune.march import march  # noqa: E402
from qtune.quantization import (  # noqa: E402
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)

ROUNDS = 7
AIMS = {"VALIDATION forward": 1.5, "CALIBRATION forward": 1.5, "training step": 2.0}


def prepared(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """``model`` in int8 with min_max observers, calibrated on ``images``."""
    with march("nash-e"):
        result = prepare(model, (images,), QconfigSetter(get_qconfig(), templates=[]))
    set_fake_quantize(result, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        result(images)
    return result


def forward_of(model: nn.Module, images: torch.Tensor) -> Callable[[], object]:
    """A forward in eval mode, without a graph."""

    def run() -> object:
        with torch.no_grad():
            return model(images)

    return run


def step_of(model: nn.Module, images: torch.Tensor) -> Callable[[], object]:
    """A training step: forward, loss, backward, SGD."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    target = torch.arange(len(images)) % 10

    def run() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), target)
        loss.backward()
        optimizer.step()
        return loss

    return run


def runs(batch: int, size: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """What is measured: (float32, prepared) by name."""
    torch.manual_seed(0)
    images, model = torch.randn(batch, 3, size, size), ResNet18().eval()
    ready = prepared(copy.deepcopy(model), images)
    trained = copy.deepcopy(ready)
    set_fake_quantize(trained, FakeQuantState.QAT)
    validated = copy.deepcopy(ready)
    set_fake_quantize(validated, FakeQuantState.VALIDATION)
    unit = forward_of(model, images)
    return {
        "VALIDATION forward": (unit, forward_of(validated, images)),
        "CALIBRATION forward": (unit, forward_of(ready, images)),
        "training step": (step_of(copy.deepcopy(model), images), step_of(trained, images)),
    }


def seconds(run: Callable[[], object]) -> float:
    """Time of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Print one line for each ratio."""
    given = [int(text) for text in sys.argv[1:]]
    threads, batch, rounds, size = given + [1, 8, ROUNDS, 224][len(given) :]
    torch.set_num_threads(threads)
    print(provenance(), f"threads={threads} batch={batch} size={size}")
    for name, pair in runs(batch, size).items():
        for run in pair:
            run()
        times = [tuple(map(seconds, pair)) for _ in range(rounds)]
        ratios = sorted(other / unit for unit, other in times)
        unit = 1e3 * statistics.median(t[0] for t in times)
        print(
            f"{name:<20} {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}),"
            f" aim {AIMS[name]}; float32 {unit:.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
