"""``tensor_analysis``: the numbers of chosen tensors and channels, in tables and pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.channels import items_of
from qtune.onnx_debug.chosen import chosen_nodes
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.distribution_stream import Subject, picture, runner_of, stream, subjects
from qtune.onnx_debug.pictures_ranges import Ranges, draw_ranges
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.tensors_numbers import (
    Numbers,
    TensorNumbers,
    TensorRow,
    as_csv,
    error_name,
)
from qtune.report.files import check_folder, write_text

TABLE, CHANNEL_TABLE = "tensor_analysis.csv", "tensor_analysis_channels.csv"


@dataclass(frozen=True, slots=True)
class TensorAnalysis:
    """``tensors``: a row for each node; ``channels``: for each channel; ``files``: written.

    Columns: :class:`TensorRow`.
    """

    tensors: tuple[TensorRow, ...]
    channels: tuple[TensorRow, ...]
    files: tuple[Path, ...]


def tensor_analysis(
    model_or_file: Any,
    calibration_data: Given | CalibrationDataSet | Runner,
    node_names: str | Sequence[str],
    save_dir: str | os.PathLike[str] = "./",
    num_processes: int = 16,
) -> TensorAnalysis:
    """Measure the tensors of ``node_names`` over all items of the data.

    A calibration node: what it reads in the float model, and the error of its grid. An ordinary
    node: its (first) output in the float model, and its error in the calibrated model. Channels lie
    along the grid's axis; without one, along axis 0 of weights and 1 of others. A tensor whose
    channels differ in number between items is measured as a whole only.

    ``num_processes``: how many tensors are added up at a time, at most as many as there are cores
    and nodes. They are threads of one process, so that the model is loaded and run once; the
    numbers don't depend on it.

    Files: ``tensor_analysis.csv``, ``tensor_analysis_channels.csv``, ``<node>_tensor.png``. Raises
    ``ArgumentError`` for an unknown node and a number below 1.
    """
    check_folder(save_dir, "save_dir")
    if not isinstance(num_processes, int) or isinstance(num_processes, bool) or num_processes < 1:
        raise ArgumentError(f"num_processes: expected 1 or more, got {num_processes!r}")
    runner = runner_of(model_or_file, calibration_data)
    chosen = subjects(runner.model, chosen_nodes(runner.model, node_names, "node_names"))
    numbers = [TensorNumbers(s, items_of(runner, s), len(chosen)) for s in chosen]
    _measure(runner, numbers, num_processes)
    rows = [row for held in numbers for row in held.rows()]
    tensors = tuple(row for row in rows if row.channel is None)
    channels = tuple(row for row in rows if row.channel is not None)
    files = [
        write_text(Path(save_dir) / TABLE, as_csv(tensors)),
        write_text(Path(save_dir) / CHANNEL_TABLE, as_csv(channels)),
        *(_draw(h, held, save_dir) for h in numbers if (held := h.channels) and held.clipped.size),
    ]
    return TensorAnalysis(tensors, channels, tuple(files))


def workers(num_processes: int, nodes: int) -> int:
    """How many threads are used."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(num_processes, cores or 1, nodes))


def _measure(runner: Runner, numbers: Sequence[TensorNumbers], num_processes: int) -> None:
    by_subject: dict[Subject, TensorNumbers] = {held.subject: held for held in numbers}
    count = workers(num_processes, len(numbers))
    waiting: dict[Subject, Future[None]] = {}
    with ThreadPoolExecutor(count, thread_name_prefix="tensor_analysis") as pool:
        for subject, plain, calibrated in stream(runner, list(by_subject), "tensors"):
            if subject in waiting:  # its items are added up in their order
                waiting.pop(subject).result()
            if len(waiting) >= 2 * count:  # the arrays of so many are held
                waiting.pop(next(iter(waiting))).result()
            waiting[subject] = pool.submit(by_subject[subject].add, plain, calibrated)
        for future in waiting.values():
            future.result()


def _draw(held: TensorNumbers, channels: Numbers, save_dir: str | os.PathLike[str]) -> Path:
    subject, values = held.subject, channels.values
    ranges = Ranges(
        values.least.tolist(), values.most.tolist(), channels.sqnr.tolist(), held.thresholds()
    )
    title = f"{subject.name} ({subject.kind})"
    return draw_ranges(picture(save_dir, subject, "tensor"), ranges, title, error_name(subject))
