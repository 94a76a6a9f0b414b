"""Cost of the tuning tools, beside the forwards that they can't do without; one thread.

Run by hand: ``python benchmarks/bench_analysis.py [repeats]``. Medians of CPU time and their
ratios; the two sides of a ratio are measured in turns.

* ``auto_find_bad_case``, whole, with its report, page and the files of the cases, under L1, COSINE
  and ATOL, topk 1: at most 1.3 times the forwards of both models over the same data. Nets: the
  planted ResNet-20 (two batches of 16, and 32 single images), MobileNetV2 at 224x224 with batch 1,
  and a net whose output is large beside its work (32x256x256).
* ``run`` and ``compare_per_layer`` with own errors on the planted ResNet-20, one batch of 16 as bad
  case: ``compare_per_layer`` at most 5 F, where F is one eager float forward over both batches. The
  page is shown apart.
* Memory of ``run`` on MobileNetV2 at 224x224: how far it raises the peak of a process (``VmHWM``),
  beside how far one forward of both models does, in largest activations (4.6 MiB): at most 3 more.
* ``grad_x_error`` on the planted ResNet-20, the tables of both batches: at most 12 F, the first one
  of a process and later ones; rank correlation with ablation at least 0.9 (all of it, with the
  other positions: ``bench_grad_x_error.py``).

Every figure stands beside its aim.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["QTUNE_RUN_DIR"] = ""
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "public_models")]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from benchmarks.bench_grad_x_error import measure as grad_x_error_of  # noqa: E402
from qtune.analysis import pages  # noqa: E402
from qtune.analysis.quant_analysis import QuantAnalysis  # noqa: E402
from qtune.capture.inputs import Inputs  # noqa: E402
from qtune.march import set_march  # noqa: E402
from qtune.profiler.metric import Metric  # noqa: E402
from qtune.profiler.observe import run_model  # noqa: E402
from tests.analysis.nets import calibrated  # noqa: E402
from tests.analysis.planted import POSITIONS, planted  # noqa: E402

Call = Callable[[], object]
METRICS = [Metric.get_metric(name) for name in ("L1", "COSINE", "ATOL")]


@dataclass(frozen=True, slots=True)
class Subject:
    """A float net, its calibrated model, and data."""

    name: str
    net: nn.Module
    calib: nn.Module
    data: list[Tensor]


def medians(repeats: int, *calls: Call) -> list[float]:
    """CPU seconds of each call; they take turns, after one round that does not count."""
    taken: list[list[float]] = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for times, call in zip(taken, calls, strict=True):
            start = time.process_time()
            call()
            if repeat:
                times.append(time.process_time() - start)
    return [statistics.median(times) for times in taken]


def subjects() -> list[Subject]:
    from mobilenet_v2 import MobileNetV2

    torch.manual_seed(0)
    case = planted()
    single = [image[None] for batch in case.batches for image in batch]
    mobile = MobileNetV2().eval()
    images = [torch.rand(1, 3, 224, 224) for _ in range(4)]
    wide = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 32, 1)).eval()
    large = [torch.rand(1, 3, 256, 256) for _ in range(4)]
    return [
        Subject("ResNet-20, 2 x 16", case.net, case.model, case.batches),
        Subject("ResNet-20, 32 x 1", case.net, case.model, single),
        Subject("MobileNetV2 224, 4 x 1", mobile, calibrated(mobile, *images[:2]), images),
        Subject("large output, 4 x 1", wide, calibrated(wide, *large[:2]), large),
    ]


def forwards(subject: Subject) -> None:
    for batch in subject.data:
        run_model(subject.net, Inputs(batch))
        run_model(subject.calib, Inputs(batch))


def search(subject: Subject, folder: str) -> QuantAnalysis:
    qa = QuantAnalysis(subject.net, subject.calib, "fake_quant", out_dir=folder)
    qa.auto_find_bad_case(subject.data)
    return qa


def bad_cases(all_subjects: list[Subject], repeats: int, folder: str) -> None:
    print("auto_find_bad_case, in forwards of both models over the data; aim: at most 1.3")
    for subject in all_subjects:
        base, found = medians(
            repeats, lambda s=subject: forwards(s), lambda s=subject: search(s, folder)
        )
        print(f"  {subject.name:<28} {found / base:6.2f} (forwards {base * 1e3:.1f} ms)")


AIMS = {"run": "no aim", "compare_per_layer": "aim: at most 5 F", "of it page": "no aim"}


def comparison(repeats: int, folder: str) -> None:
    """``run`` into an empty folder, ``compare_per_layer``, and the page of it alone.

    The files of a repeat are removed before the next: what counts is the writing, not a machine
    that runs out of memory for files. In the median F, and the least value in the least F.
    """
    case = planted()
    taken: dict[str, list[float]] = {"F": [], **{name: [] for name in AIMS}}

    def timed(name: str, call: Call) -> object:
        start = time.process_time()
        result = call()
        taken[name].append(time.process_time() - start)
        return result

    def forward() -> None:
        with torch.no_grad():
            for batch in case.batches:
                case.net(batch)

    for repeat in range(repeats + 1):
        if repeat == 1:  # the first round makes and compiles what later ones have
            first = {name: times.pop() for name, times in taken.items()}
            taken["F"].clear()
        with tempfile.TemporaryDirectory(dir=folder) as place:
            qa = QuantAnalysis(case.net, case.model, "fake_quant", out_dir=place)
            qa.set_bad_case(case.batches[0])
            for _ in range(3):
                timed("F", forward)
            timed("run", qa.run)
            found = timed("compare_per_layer", qa.compare_per_layer)
            timed("of it page", lambda found=found: pages.compare_page(found, METRICS))
    unit, least = statistics.median(taken["F"]), min(taken["F"])
    print(f"planted ResNet-20, in F = {unit * 1e3:.1f} ms (least {least * 1e3:.1f} ms)")
    for name, aim in AIMS.items():
        times = taken[name]
        print(
            f"  {name:<28} {statistics.median(times) / unit:6.2f} F (least in least F "
            f"{min(times) / least:.2f}, first of the process {first[name] / unit:.2f}); {aim}"
        )


def gradients() -> None:
    found = grad_x_error_of(POSITIONS[1])
    print(
        f"grad_x_error, in F = {found.unit * 1e3:.1f} ms: first table {found.cold:.2f} F, later "
        f"{found.warm:.2f} F; aim: at most 12 F"
    )
    ranks = ", ".join(f"{name} {rank:.3f}" for name, (rank, _) in found.ranks.items())
    print(f"  rank correlation with ablation by loss: {ranks}; aim: at least 0.9")


LARGEST = 96 * 112 * 112 * 4


def memory(folder: str) -> None:
    """A process of its own, whose large tensors leave memory as soon as they are freed."""
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--peak", folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=settings)
    plain, seen = (int(line) / LARGEST for line in done.stdout.split())
    print(
        f"memory of MobileNetV2 224, in largest activations: models {plain:.2f}, run {seen:.2f}, "
        f"{seen - plain:.2f} more; aim: less than 3 more"
    )


def peaks(folder: str) -> None:
    """Print by how many bytes both models alone, and ``run``, raise the peak of this process."""
    from mobilenet_v2 import MobileNetV2

    torch.manual_seed(0)
    net, image = MobileNetV2().eval(), torch.rand(1, 3, 224, 224)
    calib = calibrated(net, torch.rand(1, 3, 64, 64))
    qa = QuantAnalysis(net, calib, "fake_quant", out_dir=folder)
    qa.set_bad_case(torch.rand(1, 3, 64, 64))
    qa.run()  # what a first run imports and compiles does not count
    qa.set_bad_case(image)
    print(_raised(lambda: [run_model(model, Inputs(image)) for model in (net, calib)]))
    print(_raised(qa.run))


def _raised(call: Call) -> int:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main() -> None:
    torch.set_num_threads(1)
    set_march("nash-e")
    if sys.argv[1:2] == ["--peak"]:
        peaks(sys.argv[2])
        return
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    all_subjects = subjects()
    with tempfile.TemporaryDirectory() as folder:
        bad_cases(all_subjects, repeats, folder)
        comparison(repeats, folder)
        gradients()
        memory(folder)


if __name__ == "__main__":
    main()
