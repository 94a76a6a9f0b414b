"""``plot_distribution``: histograms of what chosen nodes read or give (onnx_debugger)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtune.onnx_debug.calibrated import ACTIVATION, WEIGHT
from qtune.onnx_debug.chosen import chosen_nodes
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.distribution_counts import Counts
from qtune.onnx_debug.distribution_stream import (
    ORDINARY,
    Subject,
    picture,
    runner_of,
    stream,
    subjects,
)
from qtune.onnx_debug.document_order import also_in_document_order
from qtune.onnx_debug.pictures_histograms import Panel, draw_histograms
from qtune.onnx_debug.runner import Runner
from qtune.report.files import check_folder

Array = np.ndarray[Any, Any]

_ERROR = "error (calibrated - float)"
_TITLES = {
    ORDINARY: ("float output", "calibrated output", _ERROR),
    WEIGHT: ("original weight", "calibrated weight"),
    ACTIVATION: ("input of the calibration node",),
}


@also_in_document_order("save_dir", "model_or_file", "calibrated_data", "nodes_list")
def plot_distribution(
    model_or_file: Any,
    calibrated_data: Given | CalibrationDataSet | Runner,
    nodes_list: str | Sequence[str],
    save_dir: str | os.PathLike[str] = "./",
) -> list[Path]:
    """Draw the distributions of ``nodes_list``, one PNG for each; return their paths.

    A weight calibration node: the original and the calibrated weight. An activation calibration
    node: its input in the float model. An ordinary node: its (first) output in the float and in the
    calibrated model, and the difference of the two. All items of the data count. A blue triangle
    marks the value of the largest magnitude, a red dashed line the largest threshold; an ordinary
    node's is that of the calibration node that reads its output.

    Files: ``<save_dir>/<node>_distribution.png``, with ``_`` for what is no letter of a file's
    name. Raises ``ArgumentError`` for an unknown node.
    """
    check_folder(save_dir, "save_dir")
    runner = runner_of(model_or_file, calibrated_data)
    chosen = subjects(runner.model, chosen_nodes(runner.model, nodes_list, "nodes_list"))
    counts = {item.name: [Counts() for _ in _TITLES[item.kind]] for item in chosen}
    for subject, plain, calibrated in stream(runner, chosen, "distribution"):
        arrays = _arrays(subject, plain, calibrated)
        for held, array in zip(counts[subject.name], arrays, strict=True):
            held.add(array)
    return [_draw(subject, counts[subject.name], save_dir) for subject in chosen]


def _arrays(subject: Subject, plain: Array, calibrated: Array) -> tuple[Array, ...]:
    """What the panels of ``subject`` show."""
    if subject.kind == ACTIVATION:
        return (plain,)
    if subject.kind == WEIGHT:
        return plain, calibrated
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is counted as lost
        return plain, calibrated, calibrated.astype(np.float64) - plain.astype(np.float64)


def _draw(subject: Subject, counts: Sequence[Counts], save_dir: str | os.PathLike[str]) -> Path:
    threshold = None if subject.item is None else subject.item.threshold
    panels = []
    for title, held in zip(_TITLES[subject.kind], counts, strict=True):
        is_error = title == _ERROR
        panels.append(Panel(title, held, None if is_error else threshold, is_error))
    return draw_histograms(picture(save_dir, subject, "distribution"), panels, subject.name)
