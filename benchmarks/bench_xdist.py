"""Two workers against none: a suite whose test phase takes a minute or more.

Run by hand on an idle machine: ``python benchmarks/bench_xdist.py [tests]`` (40 by default; a few
for a trial). Three questions:

* at one torch thread per process, how much faster are two workers (at least 1.6 times)?
* are two workers, with the cores shared out, ever slower than one process with all of them?
* what do a cold and a warm artefact cache cost, of three models with ten tests each?

Also prints how much slower one process gets while the other core is busy, which bounds what two
workers can gain on this machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "public_models"
TESTS, RUNS = 40, 20
LONG = f"""
import sys
sys.path.insert(0, {str(EXAMPLE)!r})
import mobilenet_v2, photos
import pytest
from pytest_qtune import assert_bit_exact
from qtune.testing import output_hash

@pytest.fixture(scope="session")
def stages(qtune_stages):
    data = [photos.imagenet_crops(8, 0)]
    return qtune_stages(mobilenet_v2.mobilenet_v2, data, march="nash-e", name="MobileNetV2")

@pytest.mark.parametrize("seed", range({{tests}}), ids=lambda seed: f"{{{{seed}}}}-")
def test_same_bits_every_time(stages, seed):
    images = photos.imagenet_crops(8, seed)
    expected = output_hash(stages.quantized_bc, images)
    for _ in range({RUNS}):
        assert_bit_exact(stages.quantized_bc, inputs=images, against=expected)
"""
THREE_MODELS = """
import pytest, torch
from torch import nn
from pytest_qtune import assert_consistency

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

def net(depth):
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers)

@pytest.fixture(scope="session", params=[2, 4, 6])
def stages(qtune_stages, request):
    depth = request.param
    return qtune_stages(lambda: net(depth), [X] * 8, march="nash-e", name=f"depth {depth}")

@pytest.mark.parametrize("index", range(10))
def test_integers(stages, index):
    assert_consistency(stages.qat_bc, stages.quantized_bc, inputs=X + index, max_qscale_diff=1)
"""
SPIN = "import time; t = time.time(); sum(i * i for i in range(12_000_000)); print(time.time() - t)"


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of the whole process and of pytest's session; artefacts built and read."""

    whole: float
    session: float
    built: int
    read: int

    def __str__(self) -> str:
        return (
            f"{self.whole:6.1f} s whole process, {self.session:6.1f} s session, "
            f"{self.built} artefacts built, {self.read} read"
        )


def run(folder: Path, workers: int, *more: str, threads: int | None = None) -> Run:
    """One run of the suite in ``folder``; ``threads`` per process, shared out by the plugin if
    None."""
    report = folder / "run.json"
    flags = ("--qtune", f"--qtune-json={report}", "-q", "-n", str(workers))
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", *flags, *more, "."]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    found = re.search(r"passed.* in ([0-9.]+)s", done.stdout)
    counts = json.loads(report.read_text())["artefacts"]
    session = float(found.group(1)) if found else float("nan")
    return Run(seconds, session, counts.get("built", 0), counts.get("read", 0))


def spin_seconds(processes: int) -> float:
    started = [
        subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return max(float(process.communicate()[0]) for process in started)


def bound() -> None:
    alone, together = spin_seconds(1), spin_seconds(2)
    print(f"two busy processes: each {together / alone:.2f} times slower, so at most")
    print(f"  {2 * alone / together:.2f} times faster with two workers on this machine")


def long_suite(tests: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_runs.py").write_text(LONG.format(tests=tests))
        run(folder, 0, "-k", "0-")  # builds the artefacts, kept in the pytest cache
        one, two = (run(folder, workers, threads=1) for workers in (0, 2))
        every, shared = run(folder, 0), run(folder, 2)
    print(f"-n 0, one thread:          {one}")
    print(f"-n 2, one thread each:     {two}")
    whole, session = one.whole / two.whole, one.session / two.session
    print(f"  ratio {whole:.2f} whole process (at least 1.6), {session:.2f} session")
    print(f"-n 0, all threads:         {every}")
    print(f"-n 2, threads shared out:  {shared}")
    print(f"  ratio {every.whole / shared.whole:.2f} whole process (never below 1)")


def three_models() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_models.py").write_text(THREE_MODELS)
        print("three models, ten tests each:")
        for workers in (0, 2):
            for state, more in (("cold", ("--qtune-cache-clear",)), ("warm", ())):
                print(f"-n {workers}, {state} cache: {run(folder, workers, *more)}")


if __name__ == "__main__":
    bound()
    three_models()
    long_suite(int(sys.argv[1]) if len(sys.argv) > 1 else TESTS)
