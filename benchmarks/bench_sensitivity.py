"""Cost of a sensitivity analysis in float forwards (F) per port and variant, one thread.

Run by hand: ``python benchmarks/bench_sensitivity.py``. A plain ablation costs 1 F for each of the
five variants of a port. Less is saved work: only what lies behind the port runs, variants that
change nothing are not run, equal ones once.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from qtune.analysis import port_runs
from qtune.analysis.ablation import VARIANTS, ports
from qtune.analysis.sensitivity import sensitivity_tables
from qtune.capture.inputs import Inputs
from qtune.march import set_march
from qtune.nn.float_mode import all_float
from qtune.profiler.metric import Metric
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize


class Basic(nn.Module):
    """A basic block of ResNet-20."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        same = stride == 1 and inputs == outputs
        self.down = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(y + self.down(x))


def resnet20() -> nn.Module:
    widths = [16, 16, 16, 32, 32, 32, 64, 64, 64]
    blocks, inputs = [], 16
    for width in widths:
        blocks.append(Basic(inputs, width, 1 if width == inputs else 2))
        inputs = width
    stem = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*stem, *blocks, *head).eval()


def seconds(call: Callable[[], object], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    os.environ["QTUNE_RUN_DIR"] = ""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    set_march("nash-e")
    for batch in (1, 8):
        x = torch.rand(batch, 3, 32, 32)
        model = prepare(resnet20(), x)
        set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
        with torch.no_grad():
            model(x)
        set_fake_quantize(model, FakeQuantState.VALIDATION)

        def analyse(model: nn.Module = model, x: Tensor = x) -> object:
            return sensitivity_tables(model, Inputs(x), Metric.ATOL, "0", shown=False)

        with all_float(model):
            forward = seconds(lambda model=model, x=x: model(x), 15)  # type: ignore[misc]
        count = len(ports(model)) * len(VARIANTS)
        reused = seconds(analyse, 3)
        usual = port_runs.can_resume
        try:
            port_runs.can_resume = lambda *args: False  # type: ignore[assignment]
            whole = seconds(analyse, 3)
        finally:
            port_runs.can_resume = usual
        print(
            f"batch {batch}: F = {forward * 1e3:.2f} ms, {count} port variants; reusing "
            f"{reused / forward / count:.2f} F each, whole forwards {whole / forward / count:.2f} F"
        )


if __name__ == "__main__":
    main()
