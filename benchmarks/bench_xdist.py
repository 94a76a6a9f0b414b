"""Two workers against none: a suite whose test phase takes a minute or more, one thread each.

Run by hand: ``python benchmarks/bench_xdist.py``. Also prints how much slower one process gets
while the other core is busy, which bounds what two workers can gain on this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "public_models"
TESTS, RUNS = 40, 20
SUITE = f"""
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

@pytest.mark.parametrize("seed", range({TESTS}), ids=lambda seed: f"{{seed}}-")
def test_same_bits_every_time(stages, seed):
    images = photos.imagenet_crops(8, seed)
    expected = output_hash(stages.quantized_bc, images)
    for _ in range({RUNS}):
        assert_bit_exact(stages.quantized_bc, inputs=images, against=expected)
"""
SPIN = "import time; t = time.time(); sum(i * i for i in range(12_000_000)); print(time.time() - t)"


def suite_seconds(folder: Path, workers: int, *more: str) -> tuple[float, float]:
    """(whole process, what pytest says of its session)."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), *more, "."]
    start = time.perf_counter()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    found = re.search(r"passed in ([0-9.]+)s", done.stdout)
    return time.perf_counter() - start, float(found.group(1)) if found else float("nan")


def spin_seconds(processes: int) -> float:
    started = [
        subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return max(float(process.communicate()[0]) for process in started)


def main() -> None:
    alone, together = spin_seconds(1), spin_seconds(2)
    print(f"two busy processes: each {together / alone:.2f} times slower, so at most")
    print(f"  {2 * alone / together:.2f} times faster with two workers on this machine")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_runs.py").write_text(SUITE)
        suite_seconds(folder, 0, "-k", "0-")  # builds the artefacts, kept in the pytest cache
        one, two = suite_seconds(folder, 0), suite_seconds(folder, 2)
    print(f"-n 0: {one[0]:.1f} s whole process, {one[1]:.1f} s session")
    print(f"-n 2: {two[0]:.1f} s whole process, {two[1]:.1f} s session")
    print(f"ratio {one[0] / two[0]:.2f} whole process, {one[1] / two[1]:.2f} session")


if __name__ == "__main__":
    main()
