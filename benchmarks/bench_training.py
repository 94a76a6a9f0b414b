"""Prepared models against float32: VALIDATION, CALIBRATION and the QAT training step.

Run by hand: ``python benchmarks/bench_training.py [threads] [batch] [rounds] [size]``. ResNet-18
with random weights; float32 eager torch is the unit. The runs of one round follow each other, so
that a busy machine slows all of them; printed are the median and the range of the ratios.

Aims: VALIDATION and CALIBRATION (min_max) at most 1.5, the training step at most 2. ``WithBN``
keeps the batch norms, as the float model has them in training; ``FuseBN`` saves their time. LSQ and
PACT learn every scale.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("OMP_NUM_THREADS", sys.argv[1] if len(sys.argv) > 1 else "1")

import torch  # noqa: E402
from bench_nets import ResNet18  # noqa: E402
from torch import nn  # noqa: E402

from qtune.arith_fast.capability import provenance  # noqa: E402
from qtune.march import march  # noqa: E402
from qtune.modes import QATMode, get_qat_mode, set_qat_mode  # noqa: E402
from qtune.quantization import (  # noqa: E402
    FakeQuantState,
    QconfigSetter,
    get_default_qconfig,
    prepare,
    set_fake_quantize,
)

ROUNDS = 7
FORWARD, STEP = 1.5, 2.0
"""The aims."""


def prepared(
    model: nn.Module,
    images: torch.Tensor,
    mode: QATMode = QATMode.FuseBN,
    fake_quant: str = "fake_quant",
) -> nn.Module:
    """``model`` in int8 with min_max observers, calibrated on ``images``."""
    qconfig = get_default_qconfig(fake_quant, fake_quant)
    before = get_qat_mode()
    set_qat_mode(mode)
    try:
        with march("nash-e"):
            result = prepare(model, (images,), QconfigSetter(qconfig, templates=[]))
    finally:
        set_qat_mode(before)
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


def runs(
    batch: int, size: int
) -> Iterator[tuple[str, float, Callable[[], object], Callable[[], object]]]:
    """What is measured: name, aim, float32, prepared."""
    torch.manual_seed(0)
    images, model = torch.randn(batch, 3, size, size), ResNet18().eval()
    unit, ready = forward_of(model, images), prepared(copy.deepcopy(model), images)
    yield "CALIBRATION forward", FORWARD, unit, forward_of(ready, images)
    set_fake_quantize(ready, FakeQuantState.VALIDATION)
    yield "VALIDATION forward", FORWARD, unit, forward_of(ready, images)
    unit = step_of(copy.deepcopy(model), images)
    kinds = (
        ("FuseBN", QATMode.FuseBN, "fake_quant"),
        ("WithBN", QATMode.WithBN, "fake_quant"),
        ("WithBN, LSQ", QATMode.WithBN, "lsq"),
        ("WithBN, PACT", QATMode.WithBN, "pact"),
    )
    for name, mode, fake_quant in kinds:
        trained = prepared(copy.deepcopy(model), images, mode, fake_quant)
        set_fake_quantize(trained, FakeQuantState.QAT)
        yield f"QAT step, {name}", STEP, unit, step_of(trained, images)


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
    for name, aim, *pair in runs(batch, size):
        for run in pair:
            run()
        times = [tuple(map(seconds, pair)) for _ in range(rounds)]
        ratios = sorted(other / unit for unit, other in times)
        unit = 1e3 * statistics.median(t[0] for t in times)
        print(
            f"{name:<22} {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}),"
            f" aim {aim}; float32 {unit:.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
