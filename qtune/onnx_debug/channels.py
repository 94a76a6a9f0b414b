"""``get_channelwise_data_distribution``: a box for each channel of a tensor (onnx_debugger)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtune.errors import ArgumentError, kind_of
from qtune.onnx_debug.calibrated import WEIGHT
from qtune.onnx_debug.channels_values import ChannelValues
from qtune.onnx_debug.chosen import CALIBRATION, chosen_nodes
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.distribution_stream import Subject, picture, runner_of, stream, subjects
from qtune.onnx_debug.document_order import also_in_document_order
from qtune.onnx_debug.pictures_boxes import draw_boxes
from qtune.onnx_debug.runner import Runner
from qtune.report.files import check_folder

Array = np.ndarray[Any, Any]


@also_in_document_order("save_dir", "model_or_file", "calibrated_data", "nodes_list", "axis")
def get_channelwise_data_distribution(
    model_or_file: Any,
    calibrated_data: Given | CalibrationDataSet | Runner,
    nodes_list: str | Sequence[str],
    axis: int | None = None,
    save_dir: str | os.PathLike[str] = "./",
) -> list[Path]:
    """Draw box plots of the channels that calibration nodes read; return the pictures' paths.

    ``axis``: the channels' place in the shape, from -rank to rank - 1; ``None``: 1 for an
    activation, the node's own axis for a weight (0 where it has one scale); an activation with a
    scale for each channel has an axis of its own too. Activations are those of the float model on
    all items. How a channel is summed up: :class:`ChannelValues`.

    Files: ``<save_dir>/<node>_channelwise.png``. Raises ``ArgumentError`` for an unknown node, an
    ordinary node, and an ``axis`` that the tensor lacks.
    """
    check_folder(save_dir, "save_dir")
    check_axis(axis)
    runner = runner_of(model_or_file, calibrated_data)
    names = chosen_nodes(runner.model, nodes_list, "nodes_list", (CALIBRATION,))
    chosen = subjects(runner.model, names)
    held: dict[str, ChannelValues] = {}
    places: dict[str, int] = {}
    for subject, plain, _ in stream(runner, chosen, "channels"):
        places[subject.name] = channel_axis(subject, plain.ndim, axis)
        rows = by_channel(plain, places[subject.name])
        if subject.name not in held:
            held[subject.name] = ChannelValues(len(rows), items_of(runner, subject), len(chosen))
        held[subject.name].add(rows)
    return [
        path
        for subject in chosen
        for path in _draw(subject, held[subject.name], places[subject.name], save_dir)
    ]


def check_axis(axis: Any) -> None:
    """Raise ``ArgumentError`` if ``axis`` is neither a whole number nor ``None``."""
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
        raise ArgumentError(f"axis: expected a whole number or None, got {kind_of(axis)} ({axis})")


def channel_axis(subject: Subject, rank: int, axis: int | None = None) -> int:
    """The place of the channels in a tensor of that rank; -1 for a single number.

    ``axis`` checked, or the default: the axis of a grid with several scales, else 0 for a weight
    and 1 for others (0 where there is no second). Raises ``ArgumentError``.
    """
    if axis is None:
        own = subject.item.axis if subject.item is not None else -1
        place = own if own >= 0 else int(subject.kind != WEIGHT)
        return min(place, rank - 1)
    if not -rank <= axis < rank:
        allowed = f"choose from -{rank} to {rank - 1}" if rank else "it is a single number"
        raise ArgumentError(
            f"axis: {subject.name} reads {subject.tensor!r} of {rank} dimensions, which has no "
            f"axis {axis}; {allowed}"
        )
    return axis % rank


def by_channel(array: Array, axis: int) -> Array:
    """``[channels, values]``; one channel for the axis -1."""
    if axis < 0:
        return array.reshape(1, -1)
    moved = np.moveaxis(array, axis, 0)
    return moved.reshape(moved.shape[0], array.size // max(moved.shape[0], 1))


def items_of(runner: Runner, subject: Subject) -> int:
    """How many arrays of ``subject`` will come."""
    return 1 if subject.kind == WEIGHT else len(runner.data)


def _draw(
    subject: Subject, values: ChannelValues, axis: int, save_dir: str | os.PathLike[str]
) -> list[Path]:
    count = values.count.size
    where = f"{count} channel{'s' * (count != 1)} along axis {axis}" if axis >= 0 else "one number"
    title = f"{subject.name} ({subject.kind}), {where}"
    return draw_boxes(picture(save_dir, subject, "channelwise"), values.boxes(), title)
