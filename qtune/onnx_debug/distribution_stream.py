"""The tensors that belong to chosen nodes, over all calibration data, one after the other."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtune.errors import ArgumentError
from qtune.onnx_debug.calibrated import WEIGHT, CalibratedModel, CalibrationNode
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.names import file_stem
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.segments import Wiring
from qtune.onnx_debug.switches import Sessions
from qtune.report.progress import progress

Array = np.ndarray[Any, Any]

ORDINARY = "node"


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What is looked at: the node ``name`` of kind ``node``, ``weight`` or ``activation``.

    ``tensor``: the output of an ordinary node, what a calibration node reads. ``item``: the
    calibration node itself, or for an ordinary node one that reads its output, if there is one.
    ``stem``: its name as a file's.
    """

    name: str
    kind: str
    tensor: str
    item: CalibrationNode | None
    stem: str


def runner_of(model_or_file: Any, calibrated_data: Given | CalibrationDataSet | Runner) -> Runner:
    """A runner of the model on the data; one that is given instead of data is used again."""
    if isinstance(calibrated_data, Runner):
        return calibrated_data
    model = load_calibrated(model_or_file)
    return Runner(model, CalibrationDataSet(calibrated_data, model.inputs))


def subjects(model: CalibratedModel, names: Sequence[str]) -> list[Subject]:
    """One for each of ``names``, which are those of nodes; file names are unique among them."""
    readers = {item.source: item for item in model.calibrations.values()}
    taken: set[str] = set()
    found = []
    for name in names:
        stem = file_stem(name, taken)
        item = model.calibrations.get(name)
        if item is not None:
            found.append(Subject(name, item.kind, item.source, item, stem))
            continue
        tensor = next(output for output in model.node(name).outputs if output)
        found.append(Subject(name, ORDINARY, tensor, readers.get(tensor), stem))
    return found


def stream(
    runner: Runner, chosen: Sequence[Subject], task: str
) -> Iterator[tuple[Subject, Array, Array]]:
    """``(subject, float array, calibrated array)``: weights once, others for each item of the data.

    Of an ordinary node: its output in the float and in the calibrated model. Of a calibration node:
    what it reads in the float model, for which its threshold was chosen, and what it makes of that.
    Raises ``ArgumentError`` naming the node for a tensor that holds no numbers.
    """
    grids = Sessions(Wiring(runner.model))
    for subject in chosen:
        if subject.kind == WEIGHT and subject.item is not None:
            yield subject, *_weight(grids, subject.item)
    moving = [subject for subject in chosen if subject.kind != WEIGHT]
    if not moving:
        return
    has_nodes = any(subject.kind == ORDINARY for subject in moving)
    on: Collection[str] = runner.model.calibrations if has_nodes else ()
    wanted = dict.fromkeys(subject.tensor for subject in moving)
    for index in progress(range(len(runner.data)), task, unit="item"):
        for tensor, plain, calibrated in runner.stream(index, on, wanted):
            for subject in (subject for subject in moving if subject.tensor == tensor):
                _check(subject, plain)
                yield subject, plain, _second(grids, subject, plain, calibrated)


def _weight(grids: Sessions, item: CalibrationNode) -> tuple[Array, Array]:
    plain = grids.float_form(item.output)
    return plain, plain if item.is_stored else grids.calibrate(item, plain)


def _second(grids: Sessions, subject: Subject, plain: Array, calibrated: Array) -> Array:
    if subject.kind == ORDINARY or subject.item is None:
        return calibrated
    return grids.calibrate(subject.item, plain)


def _check(subject: Subject, array: Array) -> None:
    if array.dtype.kind not in "fiub":
        raise ArgumentError(f"{subject.name}: {subject.tensor} holds {array.dtype}, no numbers")


def picture(save_dir: str | os.PathLike[str], subject: Subject, what: str) -> Path:
    """Where the picture of ``subject`` lies in ``save_dir``."""
    return Path(save_dir) / f"{subject.stem}_{what}.png"
