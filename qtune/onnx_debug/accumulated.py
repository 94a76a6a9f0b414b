"""``plot_acc_error``: how the error grows from node to node, with chosen nodes quantized."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.named import flag
from qtune.onnx_debug.calibrated import ACTIVATION, WEIGHT, CalibratedModel
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.distribution_stream import runner_of
from qtune.onnx_debug.document_order import also_in_document_order
from qtune.onnx_debug.metrics import DEFAULT, OnnxMetric, is_comparable
from qtune.onnx_debug.metrics import metric as metric_of
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.sensitivity import switchable, switches_of
from qtune.report.files import check_folder
from qtune.report.progress import Bar, progress_bar

PICTURE = "accumulated_error.png"
_SPECIAL = (WEIGHT, ACTIVATION)


@dataclass(frozen=True, slots=True)
class AccumulatedError:
    """Of each curve and each of ``nodes`` (ordinary nodes in topological order) the error.

    ``curves``: label -> values of ``metric``, which are running means with ``average_mode``.
    ``file``: the picture.
    """

    metric: str
    average_mode: bool
    nodes: tuple[str, ...]
    curves: Mapping[str, tuple[float, ...]]
    file: Path


@also_in_document_order(
    "save_dir",
    "calibrated_data",
    "model_or_file",
    "quantize_node",
    "non_quantize_node",
    "metric",
    "average_mode",
)
def plot_acc_error(
    calibrated_data: Given | CalibrationDataSet | Runner,
    model_or_file: Any,
    quantize_node: str | Sequence[Any] | None = None,
    non_quantize_node: str | Sequence[Any] | None = None,
    metric: str = DEFAULT,
    average_mode: bool = False,
    save_dir: str | os.PathLike[str] = "./debug_result/",
) -> AccumulatedError:
    """Compare each node's output with the float model's, and draw it: a curve for each choice.

    ``quantize_node``: only these are quantized. ``non_quantize_node``: all but these. One of the
    two is given: a name or a list of names (one curve each, named as the node), or a list of lists
    (one curve each, ``partial_qmodel_<i>``). Names are those of nodes of any type; at an ordinary
    node all calibration nodes that feed it are switched, so that one which other nodes read, too,
    is switched for them as well. ``weight`` and ``activation`` stand for all calibration nodes of
    the type, in ``quantize_node`` only.

    ``metric``: one of :mod:`qtune.onnx_debug.metrics`; the worst of a node's outputs, the mean over
    all items of the data. ``average_mode``: value n is the mean of the first n
    (``[1, .9, .9, .8]`` gives ``[1, .95, .933, .9]``).

    Writes ``<save_dir>/accumulated_error.png``, also over an earlier one. Raises
    ``ArgumentError``. Source: onnx_debugger, "plot_acc_error".
    """
    chosen = metric_of(metric)
    flag("average_mode", average_mode)
    if (quantize_node is None) == (non_quantize_node is None):
        what = "neither was" if quantize_node is None else "both were"
        raise ArgumentError(f"give one of quantize_node and non_quantize_node; {what} given")
    check_folder(save_dir, "save_dir")
    runner = runner_of(model_or_file, calibrated_data)
    if quantize_node is not None:
        groups = _groups(runner.model, quantize_node, "quantize_node", _SPECIAL)
        on = {label: _switches(runner.model, names) for label, names in groups.items()}
    else:
        groups = _groups(runner.model, non_quantize_node, "non_quantize_node", ())
        everything = runner.model.calibrations
        on = {
            label: [n for n in everything if n not in set(_switches(runner.model, names))]
            for label, names in groups.items()
        }
    nodes, curves = _errors(runner, on, chosen)
    if average_mode:
        curves = {label: _running_mean(values, chosen) for label, values in curves.items()}
    from qtune.onnx_debug.pictures import draw_curves

    title = "accumulated error" + (" (running mean)" if average_mode else "")
    file = draw_curves(Path(save_dir) / PICTURE, nodes, curves, chosen.name, title)
    return AccumulatedError(chosen.name, average_mode, nodes, curves, file)


def _groups(
    model: CalibratedModel, given: Any, argument: str, special: Sequence[str]
) -> dict[str, list[str]]:
    """Label and names of each curve."""
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not listed:
        raise ArgumentError(
            f"{argument}: expected a name, a list of names or a list of such lists; got {given!r}"
        )
    nested = [not isinstance(item, str) for item in listed]
    if any(nested) and not all(nested):
        raise ArgumentError(
            f"{argument}: names and lists are mixed; give a list of names (a curve each), or a "
            f"list of lists, such as [['a'], ['a', 'b']]; got {given!r}"
        )
    if all(nested):
        return {
            f"partial_qmodel_{index}": _checked(model, names, argument, special)
            for index, names in enumerate(listed)
        }
    return {name: [name] for name in _checked(model, listed, argument, special)}


def _checked(
    model: CalibratedModel, names: Any, argument: str, special: Sequence[str]
) -> list[str]:
    if not special and isinstance(names, Sequence) and not set(_SPECIAL).isdisjoint(names):
        raise ArgumentError(
            f"{argument}: weight and activation can only be given as quantize_node; weights alone "
            "in float is quantize_node=['activation']"
        )
    if not isinstance(names, Sequence):
        return switchable(model, names, argument)
    others = [name for name in names if name not in special]
    if others or not names:
        switchable(model, others, argument)
    return list(dict.fromkeys(names))


def _switches(model: CalibratedModel, names: Sequence[str]) -> list[str]:
    found = [model.names(n) if n in _SPECIAL else switches_of(model, n) for n in names]
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


def _errors(
    runner: Runner, on: Mapping[str, Sequence[str]], metric: OnnxMetric
) -> tuple[tuple[str, ...], dict[str, tuple[float, ...]]]:
    nodes = [node for node in runner.model.nodes if node.op_type != "Constant"]
    owner = {output: node.name for node in nodes for output in node.outputs if output}
    count = len(runner.data)
    with progress_bar(count * len(owner), "accumulated error", unit="tensor") as bar:
        items = [_errors_of_item(runner, index, on, metric, owner, bar) for index in range(count)]
    names = tuple(node.name for node in nodes if all(node.name in item[0] for item in items))
    curves = {
        label: tuple(metric.mean(item[place][name] for item in items) for name in names)
        for place, label in enumerate(on)
    }
    return names, curves


def _errors_of_item(
    runner: Runner,
    index: int,
    on: Mapping[str, Sequence[str]],
    metric: OnnxMetric,
    owner: Mapping[str, str],
    bar: Bar,
) -> list[dict[str, float]]:
    """Of each curve the error by node."""
    streams = [runner.stream(index, switches, list(owner)) for switches in on.values()]
    worst: list[dict[str, float]] = [{} for _ in streams]
    for rows in zip(*streams, strict=True):  # together: a segment's float run serves all
        for values, (tensor, plain, other) in zip(worst, rows, strict=True):
            if is_comparable(plain.dtype):
                _add(values, owner[tensor], metric.value(plain, other), metric)
        bar.advance()
    return worst


def _add(values: dict[str, float], name: str, value: float | None, metric: OnnxMetric) -> None:
    if value is not None:
        values[name] = max(values.get(name, value), value, key=metric.badness)


def _running_mean(values: Sequence[float], metric: OnnxMetric) -> tuple[float, ...]:
    return tuple(metric.mean(values[:count]) for count in range(1, len(values) + 1))
