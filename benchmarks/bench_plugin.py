"""What the plugin costs a run that does not use it.

Run by hand: ``python benchmarks/bench_plugin.py [repeats]``. Wall times of whole pytest processes
on one test that does nothing, alternating with and without the plugin so that the load of the
machine hits both, and the CPU time of the same processes. The difference of the medians is the
cost. Other plugins that load heavy modules of their own are left out. Byte code is kept, as in
any installation: with ``PYTHONDONTWRITEBYTECODE`` set every start compiles the plugin's sources.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMON = ("-q", "-p", "no:cacheprovider", "-p", "no:html", "-p", "no:metadata")
RUNS = {
    "without the plugin": ("-p", "no:qtune"),
    "with it, unused": (),
    "with --qtune": ("--qtune",),
}


def run_ms(folder: Path, args: tuple[str, ...]) -> tuple[float, float]:
    """Wall and CPU time of one pytest process in milliseconds."""
    command = [sys.executable, "-m", "pytest", *COMMON, *args]
    start, cpu = time.perf_counter(), _children_ms()
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder.parent / "code")}
    environment = {**os.environ, **kept}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    return (time.perf_counter() - start) * 1e3, _children_ms() - cpu


def _children_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1e3


def start_up(repeats: int) -> None:
    """Print the median of each kind of run and its distance to the run without the plugin."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "tests")
        folder.mkdir()
        (folder / "test_nothing.py").write_text("def test_nothing(): pass\n")
        for kind in RUNS:
            run_ms(folder, RUNS[kind])  # byte code is written
        for _ in range(repeats):
            for kind, args in RUNS.items():
                times[kind].append(run_ms(folder, args))
    for index, clock in enumerate(("wall", "CPU")):
        medians = {
            kind: statistics.median(t[index] for t in found) for kind, found in times.items()
        }
        base = medians["without the plugin"]
        for kind, median in medians.items():
            cost = f"{median - base:+6.1f} ms  {median / base:5.3f}"
            print(f"{clock:<4} {kind:<20} {median:7.1f} ms  {cost}")


if __name__ == "__main__":
    start_up(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
