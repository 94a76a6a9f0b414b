"""Sensitivity of all nodes of an ONNX model, in float passes (F) per node and data item.

Run by hand: ``python benchmarks/bench_onnx_debug.py [repeats]``; one thread, CPU time. The net is
ResNet-18 with random weights (11.7 million), 1x3x224x224, with calibration nodes at all inputs of
its 21 Conv and Gemm and 8 Add. F is one run of the model without calibration nodes in one session
with all optimizations, measured between ours, so that both see the same machine. Building it is not
counted, and neither are our sessions in the first figure; with them is the second one, for one item
of data and a fresh process's state.

Aim: at most 0.7 F. The peer in the same run is the recipe of onnxruntime's users: a model for each
node, ``quantize_static(nodes_to_quantize=[node])``, a session, and a run of each; for every sixth
node. The last figure is the peak memory of a model with 105 MB of weights, in a process of its own.
"""

from __future__ import annotations

import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["QTUNE_RUN_DIR"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnxruntime.quantization import CalibrationDataReader, quantize_static  # noqa: E402

from benchmarks.bench_onnx_nets import calibrated, item, resnet18  # noqa: E402
from qtune.bpu.ort import new_session  # noqa: E402
from qtune.onnx_debug.data import CalibrationDataSet  # noqa: E402
from qtune.onnx_debug.load import load_calibrated  # noqa: E402
from qtune.onnx_debug.metrics import metrics  # noqa: E402
from qtune.onnx_debug.runner import Runner  # noqa: E402
from qtune.onnx_debug.sensitivity import candidates, outputs_of, sensitivities  # noqa: E402

COSINE = metrics("cosine-similarity")
WIDE = 96  # channels of the first stage: 105 MB of weights
MEMORY = "--memory"


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def analyse(runner: Runner, kind: str, items: int) -> int:
    names = candidates(runner.model, kind)
    sensitivities(runner, names, COSINE, items, outputs_of(runner.model, None))
    return len(names) * items


def measure(repeats: int) -> None:
    plain, x = resnet18(), item()
    model = load_calibrated(calibrated(plain, x))
    data = CalibrationDataSet([item(seed=seed) for seed in range(2)], model.inputs)
    session = new_session(plain.SerializeToString())

    def units(count: int = 5) -> list[float]:
        return [seconds(lambda: session.run(None, {"x": x})) for _ in range(count)]

    units()
    for kind in ("node", "weight", "activation"):
        runner = Runner(model, data)
        around = units()
        first = seconds(lambda r=runner, k=kind: analyse(r, k, 1))
        unit = statistics.median(around + units())
        runs = len(candidates(model, kind))
        print(
            f"{kind}: F = {unit * 1e3:.1f} ms; sessions built: {first / unit / runs:.3f} F", end=""
        )
        ratios = []
        for _ in range(repeats):
            before = units()
            took = seconds(lambda r=runner, k=kind: analyse(r, k, 2))
            ratios.append(took / statistics.median(before + units()) / runs / 2)
        print(
            f"; ready: {statistics.median(ratios):.3f} F (least {min(ratios):.3f}) x {runs} nodes"
        )
    print(f"one by one, onnxruntime's quantizer: {peer(plain, x, units):.1f} F")


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, x: Any) -> None:
        self.items = iter([{"x": x}])

    def get_next(self) -> Any:
        return next(self.items, None)


def peer(plain: onnx.ModelProto, x: Any, units: Callable[[], list[float]]) -> float:
    nodes = [n.name for n in plain.graph.node if n.op_type in ("Conv", "Add", "Gemm")][::6]
    logging.disable(logging.WARNING)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        given, made = f"{folder}/float.onnx", f"{folder}/one.onnx"
        onnx.save(plain, given)

        def one(name: str) -> None:
            quantize_static(given, made, _Reader(x), nodes_to_quantize=[name])
            new_session(Path(made).read_bytes()).run(None, {"x": x})

        for name in nodes:
            before = units()
            took = seconds(lambda n=name: one(n))
            ratios.append(took / statistics.median(before + units()))
    return statistics.median(ratios)


def memory(path: str) -> None:
    """Of this process: MB with the model loaded, and the peaks before and after the analysis."""
    model = load_calibrated(path)
    weights = sum(np.prod(t.dims) * 4 for t in model.proto.graph.initializer) / 1e6
    held, before = _resident(), _peak()
    analyse(Runner(model, CalibrationDataSet([item()], model.inputs)), "node", 1)
    print(
        f"{weights:.0f} MB of weights: {held:.0f} MB with the model loaded (peak {before:.0f} MB), "
        f"peak of the analysis {_peak():.0f} MB, {_resident():.0f} MB at its end"
    )


def _peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()  # ru_maxrss has the parent's in it
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1e3


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure_memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/wide.onnx"
        onnx.save(calibrated(resnet18(width=WIDE), item()), path)
        subprocess.run([sys.executable, __file__, MEMORY, path], check=True)


def main() -> None:
    if MEMORY in sys.argv:
        memory(sys.argv[-1])
        return
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    measure_memory()


if __name__ == "__main__":
    main()
