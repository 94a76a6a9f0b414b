"""How long ``prepare`` takes, by phase, and against other ways to get a graph of the same model.

Run by hand: ``python benchmarks/bench_prepare.py [blocks] [rounds]``. A residual net of small
convolutions, 7 calls per block: 143 blocks are 1000 nodes. Printed are CPU seconds (the least
of the rounds) and their ratio to ``torch.fx.symbolic_trace`` and ``torch.export``.

Aim: prepare of 1000 nodes in under 3 s. Float layers compute next to nothing here, so this is the
time of qtune's own Python.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, fx, nn  # noqa: E402

from qtune.capture import Inputs, capture  # noqa: E402
from qtune.march import march  # noqa: E402
from qtune.quantization import prepare  # noqa: E402

VARIABLE = "QTUNE_RUN_DIR"


class Block(nn.Module):
    """conv, norm, relu, conv, norm, residual, relu"""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + x)


class Switched(nn.Sequential):
    """The net, or its second half only: two branches with half of the nodes in common."""

    def forward(self, x: Tensor, whole: bool = True) -> Tensor:
        layers = list(self)
        for layer in layers[: len(layers) // 2]:
            x = layer(x)
        for layer in layers[len(layers) // 2 :] if whole else layers[len(layers) // 2 : -1]:
            x = layer(x)
        return x


def least(function: Callable[[], Any], rounds: int) -> float:
    """CPU seconds (of one thread) of the fastest of ``rounds`` runs."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return min(found)


def phases(blocks: int, rounds: int) -> dict[str, float]:
    """Seconds of each way through the same net."""
    torch.set_num_threads(1)
    net = nn.Sequential(*(Block() for _ in range(blocks))).eval()
    switched = Switched(*(Block() for _ in range(blocks))).eval()
    x = torch.randn(1, 8, 8, 8)
    examples = [Inputs(x), Inputs(x, False)]
    with march("nash-e"), tempfile.TemporaryDirectory() as directory:
        os.environ[VARIABLE] = ""
        found = {
            "float forward": least(lambda: net(x), rounds),
            "copy of the model": least(lambda: copy.deepcopy(net), rounds),
            "capture": least(lambda: capture(net, x, fixed=True), rounds),
            "capture, two branches": least(lambda: capture(switched, examples), rounds),
            "prepare": least(lambda: prepare(net, x), rounds),
            "prepare, two branches": least(lambda: prepare(switched, examples), rounds),
        }
        os.environ[VARIABLE] = directory
        found["prepare with run files"] = least(lambda: prepare(net, x), rounds)
    found["torch.fx.symbolic_trace"] = least(lambda: fx.symbolic_trace(net), rounds)
    found["torch.export"] = least(lambda: torch.export.export(net, (x,)), 1)
    return found


def main() -> None:
    blocks, rounds = (int(a) for a in (*sys.argv[1:3], *("143", "3")[len(sys.argv) - 1 :]))
    found = phases(blocks, rounds)
    trace, export = found["torch.fx.symbolic_trace"], found["torch.export"]
    print(f"{blocks * 7} calls; seconds, times symbolic_trace, times torch.export")
    for name, seconds in found.items():
        print(f"{name:26} {seconds:7.3f} {seconds / trace:7.2f} {seconds / export:7.2f}")


if __name__ == "__main__":
    main()
