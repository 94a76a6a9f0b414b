"""The model of examples/public_models: prepare, export, convert, and integer against float runs.

Run by hand on a quiet machine: ``python benchmarks/bench_model.py``. One thread, medians, ratios
against torch float32 eager (and ONNX Runtime float32) of the same net in the same run.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "public_models"
sys.path.insert(0, str(EXAMPLE))
os.environ.setdefault("QTUNE_RUN_DIR", "")

import mobilenet_v2  # noqa: E402
import photos  # noqa: E402

from qtune.arith_fast.capability import provenance  # noqa: E402
from qtune.bpu import compiler  # noqa: E402
from qtune.march import march  # noqa: E402
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize  # noqa: E402
from qtune.quantization.hbdk4 import export  # noqa: E402

BATCH, REPEATS = 8, 15


def median_ms(run: Callable[[], object], repeats: int = REPEATS) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def paired_ms(runs: dict[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """Medians of several runs taken in turn, so that drift of the machine hits all alike."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    model, images = mobilenet_v2.mobilenet_v2(), photos.imagenet_crops(BATCH, seed=0)
    with march("nash-e"), torch.no_grad():
        prepare_ms = median_ms(lambda: prepare(model, images), 5)
        calib = prepare(model, images)
        set_fake_quantize(calib.eval(), FakeQuantState.CALIBRATION)
        calib(images)
        set_fake_quantize(calib, FakeQuantState.VALIDATION)
        export_ms = median_ms(lambda: export(calib, images), 5)
        qat = export(calib, images)
        convert_ms = median_ms(lambda: compiler.convert(qat, "nash-e"), 5)
        function = compiler.convert(qat, "nash-e")[0]
        channels_last = images.to(memory_format=torch.channels_last)
        found = paired_ms(
            {
                "torch float32 eager": lambda: model(images),
                "torch float32 eager, channels_last": lambda: model(channels_last),
                "fake-quant (VALIDATION)": lambda: calib(images),
                "emulated integers": lambda: function(images),
            }
        )
    print(f"MobileNetV2, batch {BATCH}, one thread, {provenance()}")
    print(f"capture + fuse + prepare  {prepare_ms:8.1f} ms")
    print(f"export + convert          {export_ms + convert_ms:8.1f} ms")
    base = found["torch float32 eager"]
    for name, value in found.items():
        print(f"{name:36} {value:8.1f} ms   {base / value:5.2f} x float32 eager")


if __name__ == "__main__":
    main()
