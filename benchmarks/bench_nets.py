"""Whole nets at 224x224: emulated integers against torch float32 and ONNX Runtime's own int8.

Run by hand: ``python benchmarks/bench_nets.py [threads] [batch] [net]``. ResNet-18 and
MobileNetV2 with random weights; ONNX Runtime runs the QDQ file that its own static quantizer made
of the same net, after its own pre-processing (without that its file runs three times slower).
Medians of a process each, taken in turn; each ratio is the median over the turns.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", sys.argv[1] if len(sys.argv) > 1 else "1")

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
import torch  # noqa: E402
from onnxruntime.quantization import (  # noqa: E402
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: E402
from torch import nn  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "public_models"
sys.path.insert(0, str(EXAMPLE))

from mobilenet_v2 import MobileNetV2  # noqa: E402

from qtune.arith_fast.capability import provenance  # noqa: E402
from qtune.bpu import compiler  # noqa: E402
from qtune.march import march  # noqa: E402
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize  # noqa: E402
from qtune.quantization.hbdk4 import export  # noqa: E402

REPEATS = 17


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1, self.relu1 = nn.BatchNorm2d(cout), nn.ReLU()
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2, self.relu2 = nn.BatchNorm2d(cout), nn.ReLU()
        self.down: nn.Module | None = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(y + (x if self.down is None else self.down(x)))


class ResNet18(nn.Module):
    """1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    Block(widths[i], widths[i + 1], 1 if i == 0 else 2),
                    Block(widths[i + 1], widths[i + 1], 1),
                )
                for i in range(4)
            )
        )
        self.average, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.pool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(self.average(x).flatten(1))


class _Images(CalibrationDataReader):
    def __init__(self, images: torch.Tensor) -> None:
        self._left: Iterator[torch.Tensor] = iter(images.split(1))

    def get_next(self) -> dict[str, Any] | None:
        image = next(self._left, None)
        return None if image is None else {"x": image.numpy()}


def emulated(model: nn.Module, images: torch.Tensor) -> Callable[[], Any]:
    """The model's integer program on ``images``."""
    with march("nash-e"), torch.no_grad():
        calib = prepare(model, images)
        set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
        calib(images)
        set_fake_quantize(calib, FakeQuantState.VALIDATION)
        function = compiler.convert(export(calib, images), "nash-e")[0]
    return lambda: function(images)


def onnxruntime_int8(
    model: nn.Module, images: torch.Tensor, threads: int, *, preprocess: bool
) -> Callable[[], Any]:
    """ONNX Runtime's static QDQ quantization of the model (uint8 activations, int8 weights).

    ``preprocess``: after its own pre-processing, which folds batch norms; else of the raw export.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, ready, quantized = (Path(folder, f"{n}.onnx") for n in ("float", "ready", "int8"))
        torch.onnx.export(
            model, (images[:1],), str(plain), input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, dynamo=False,
        )  # fmt: skip
        if preprocess:
            quant_pre_process(plain, ready)
        else:
            ready = plain
        quantize_static(
            ready, quantized, _Images(images[:2]), quant_format=QuantFormat.QDQ,
            per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = ort.InferenceSession(str(quantized), options, ["CPUExecutionProvider"])
    array = images.numpy()
    return lambda: session.run(None, {"x": array})


PEERS = (
    "emulated integers",
    "torch float32 eager",
    "onnxruntime int8",
    "onnxruntime int8, raw",
)
ROUNDS = 3


def run_of(peer: str, model: nn.Module, images: torch.Tensor, threads: int) -> Callable[[], Any]:
    """One forward of a peer."""
    if peer == PEERS[0]:
        return emulated(model, images)
    if peer == PEERS[1]:
        return lambda: model(images)
    return onnxruntime_int8(model, images, threads, preprocess=peer == PEERS[2])


def measure(name: str, batch: int, threads: int, peer: str) -> float:
    """Median seconds of a forward in this process, the first ones left out."""
    torch.set_num_threads(threads)
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    model = NETS[name]().eval()
    shape = (batch, 3, 224, 224)
    images = torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    clock = time.process_time if threads == 1 else time.perf_counter
    times = []
    with torch.no_grad():
        run = run_of(peer, model, images, threads)
        for _ in range(REPEATS):
            start = clock()
            run()
            times.append(clock() - start)
    return statistics.median(times[3:])


def report(name: str, batch: int, threads: int) -> None:
    """Print one net at one batch: peers in turn, each in a process of its own.

    Idle threads of one peer spin for a while and would take the other's core.
    """
    found: dict[str, list[float]] = {peer: [] for peer in PEERS}
    for _ in range(ROUNDS):
        for peer in PEERS:
            command = [
                sys.executable,
                "-W",
                "ignore",
                __file__,
                str(threads),
                str(batch),
                name,
                peer,
            ]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[peer].append(float(out.split()[-1]))
    print(f"{name}, batch {batch}, {threads} thread(s)")
    for peer, times in found.items():
        ratio = statistics.median(t / own for t, own in zip(times, found[PEERS[0]], strict=True))
        print(f"  {peer:22}{1e3 * statistics.median(times):9.1f} ms{ratio:8.2f} x integers' time")


NETS = {"ResNet-18": ResNet18, "MobileNetV2": MobileNetV2}


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    batches = [int(sys.argv[2])] if len(sys.argv) > 2 else [1, 8]
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    if len(sys.argv) > 4:
        print(measure(wanted, batches[0], threads, sys.argv[4]))
        return
    print(provenance())
    for name in NETS:
        for batch in batches if wanted in name else []:
            report(name, batch, threads)


if __name__ == "__main__":
    main()
