"""Cost of sensitivity v2 by ablation, in float forwards (F) per port and variant; one thread.

Run by hand: ``python benchmarks/bench_sensitivity.py [repeats]``. The net is the planted ResNet-20
of ``tests/analysis/planted.py``: 22 weight layers, 3x32x32, 32 evaluation samples in two batches of
16. F is one eager forward of the user's float net over both batches, measured between the
repeats. All five variants (round, clip, qint8, qint16, fp16) of every port count, also those that
need no run. Printed are medians of CPU time and their ratios.

Aims: at most 0.4 F with min_max scales, 0.7 F with mse ones.

The peer in the same run is the plain ablation: a hook at the port and a forward of the whole model
for each variant. Published per-item figures of other tools, one value for each item, on this net
and in this unit (measured elsewhere, F = 39 ms, plus or minus 30 %): AIMET-torch 1.4, PPQ layerwise
2.2, MQBench 2.3, AIMET-onnx 2.6, NNCF 3.5, Quark 4.3, onnxruntime one node at a time 8.7.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["QTUNE_RUN_DIR"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

from qtune.analysis.ablation import VARIANTS, ports, switched_on, variant  # noqa: E402
from qtune.analysis.port_runs import PortRuns  # noqa: E402
from qtune.analysis.sensitivity import sensitivity_tables  # noqa: E402
from qtune.capture.inputs import Inputs  # noqa: E402
from qtune.march import set_march  # noqa: E402
from qtune.nn.float_mode import all_float  # noqa: E402
from qtune.profiler.metric import Metric  # noqa: E402
from qtune.quantization.observer_v2 import MSEObserver  # noqa: E402
from tests.analysis.planted import Planted, planted  # noqa: E402

METRIC = Metric.ATOL


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def forwards(case: Planted) -> float:
    """One F."""
    with torch.no_grad():
        return seconds(lambda: [case.net(batch) for batch in case.batches])


def analyse(case: Planted) -> None:
    for index, batch in enumerate(case.batches):
        sensitivity_tables(case.model, Inputs(batch), METRIC, str(index), shown=False)


def plain_ablation(case: Planted) -> None:
    """Whole forwards with a hook, nothing reused."""
    for batch in case.batches:
        with all_float(case.model):
            baseline = case.model(batch)
            for port in ports(case.model):
                for name in VARIANTS:
                    with switched_on(port, variant(port, name)):
                        METRIC(baseline, case.model(batch))


def runs_and_cache(case: Planted) -> tuple[int, int]:
    """How many variants had to be run, per batch, and the bytes kept of a baseline."""
    batch = case.batches[0]
    with all_float(case.model):
        runs = PortRuns(case.model, Inputs(batch), METRIC, case.model(batch), VARIANTS)
        runs.scores(ports(case.model), shown=False)
    return runs.runs, runs.baseline.cached_bytes if runs.baseline else 0


def measure(name: str, case: Planted, repeats: int) -> None:
    count = len(ports(case.model)) * len(VARIANTS)
    analyse(case)
    units = [forwards(case) for _ in range(5)]
    own = []
    for _ in range(repeats):
        own.append(seconds(lambda: analyse(case)))
        units.extend(forwards(case) for _ in range(5))
    plain = seconds(lambda: plain_ablation(case))
    units.extend(forwards(case) for _ in range(5))
    unit = statistics.median(units)
    runs, cached = runs_and_cache(case)
    print(
        f"{name}: F = {unit * 1e3:.1f} ms (least {min(units) * 1e3:.1f}); {count} (port, variant), "
        f"{runs} of them run; {statistics.median(own) / unit / count:.3f} F each (least "
        f"{min(own) / unit / count:.3f}), plain ablation {plain / unit / count:.2f} F; cache "
        f"{cached / 2**20:.1f} MiB"
    )


def main() -> None:
    torch.set_num_threads(1)
    set_march("nash-e")
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    measure("min_max", planted(), repeats)
    measure("mse", planted(observer=MSEObserver), repeats)


if __name__ == "__main__":
    main()
