"""Gradient times error on the planted ResNet-20: cost of the whole table, and how it ranks.

Run by hand: ``python benchmarks/bench_grad_x_error.py``. One thread. F is the CPU time of one eager
float forward over the 32 evaluation samples (2 batches of 16); a table costs the tables of both
batches. The first one of a process, in which oneDNN makes its backward primitives, is shown apart.
The rank correlation (Spearman) is that with ablation under the same loss, over both batches: by how
far the ``qint8`` column lies from the loss of the float outputs.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402
from torch import Tensor  # noqa: E402

from qtune.analysis.grad_x_error import SCORE, grad_x_error_tables  # noqa: E402
from qtune.analysis.sensitivity import sensitivity_tables  # noqa: E402
from qtune.capture.inputs import Inputs  # noqa: E402
from qtune.errors import ArgumentError  # noqa: E402
from qtune.march import set_march  # noqa: E402
from qtune.profiler.metric import Metric, MetricInfo  # noqa: E402
from tests.analysis.planted import POSITIONS, Planted, planted  # noqa: E402

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": lambda a, b: F.l1_loss(b, a),
    "mse": lambda a, b: F.mse_loss(b, a),
    "kl": lambda a, b: F.kl_div(b.log_softmax(1), a.softmax(1), reduction="batchmean"),
    "ce": lambda a, b: F.cross_entropy(b, a.argmax(1)),
}
Scores = dict[tuple[str, str], float]


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def gradients(net: Planted, metric: MetricInfo) -> Scores:
    total: Scores = {}
    for x in net.batches:
        table = grad_x_error_tables(net.model, Inputs(x), metric, "0")["all"]
        for row in table.records():
            port = row["op_name"], row["fake_stub_type"]
            total[port] = total.get(port, 0.0) + row[SCORE]
    return total


def ablation(net: Planted, metric: MetricInfo) -> Scores:
    total: Scores = {}
    for x in net.batches:
        with torch.no_grad():
            output = net.net(x)
        at_float = metric(output, output) or 0.0
        table = sensitivity_tables(
            net.model, Inputs(x), metric, "0", variants=("qint8",), shown=False
        )["all"]
        for row in table.records():
            port = row["op_name"], row["fake_stub_type"]
            change = abs(row[f"qint8_{metric.name}"] - at_float)
            total[port] = total.get(port, 0.0) + change
    return total


@dataclass(frozen=True, slots=True)
class Measured:
    """``unit``: seconds of one F. Cost of a table in F. ``ranks``: by loss, with the first port."""

    unit: float
    cold: float
    warm: float
    ranks: dict[str, tuple[float, str]]


def measure(position: str) -> Measured:
    """Cost and ranking with the activation planted at ``position``."""
    net = planted(position)
    metrics = {name: _metric(name, function) for name, function in LOSSES.items()}

    def forward() -> None:
        with torch.no_grad():
            for x in net.batches:
                net.net(x)

    def table() -> Scores:
        return gradients(net, metrics["mse"])

    forward()
    unit = statistics.median(seconds(forward) for _ in range(9))
    cold = seconds(table) / unit
    warm = statistics.median(seconds(table) for _ in range(5)) / unit
    ranks = {}
    for name, metric in metrics.items():
        by_gradient, by_ablation = gradients(net, metric), ablation(net, metric)
        pairs = [[by_gradient[port], by_ablation[port]] for port in by_ablation]
        first = max(by_gradient, key=by_gradient.__getitem__)
        ranks[name] = float(spearmanr(pairs).statistic), first[0]
    return Measured(unit, cold, warm, ranks)


def _metric(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> MetricInfo:
    try:
        return Metric.get_metric(name)
    except ArgumentError:
        Metric.register(name, False, "all")(function)
        return Metric.get_metric(name)


def main() -> None:
    os.environ["QTUNE_RUN_DIR"] = ""
    torch.set_num_threads(1)
    set_march("nash-e")
    for position in POSITIONS:
        found = measure(position)
        print(
            f"{position}: F = {found.unit * 1e3:.1f} ms; first table {found.cold:.1f} F, then "
            f"{found.warm:.1f} F"
        )
        for name, (correlation, first) in found.ranks.items():
            print(f"  {name}: rank correlation {correlation:.3f}; first {first}")


if __name__ == "__main__":
    main()
