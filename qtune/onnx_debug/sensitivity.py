"""``get_sensitivity_of_nodes``: what quantizing one node alone does to the model's output."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.named import flag
from qtune.onnx_debug.calibrated import ACTIVATION, WEIGHT, CalibratedModel
from qtune.onnx_debug.chosen import NODE, chosen_nodes
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.distribution_stream import runner_of
from qtune.onnx_debug.metrics import DEFAULT, OnnxMetric, is_comparable
from qtune.onnx_debug.metrics import metrics as metrics_of
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.table import rounded, table
from qtune.report import screen
from qtune.report.files import check_folder, write_text
from qtune.report.progress import progress_bar

Array = np.ndarray[Any, Any]
Values = dict[str, dict[str, float]]

ORDINARY = "node"
KINDS = (ORDINARY, WEIGHT, ACTIVATION)
FOLDER = "node_sensitivity"

_log = logging.getLogger(__name__)


def get_sensitivity_of_nodes(
    model_or_file: Any,
    metrics: str | Sequence[str] = DEFAULT,
    calibrated_data: Given | CalibrationDataSet | Runner | None = None,
    output_node: str | None = None,
    node_type: str = ORDINARY,
    data_num: int | None = 1,
    verbose: bool = False,
    interested_nodes: str | Sequence[str] | None = None,
    save_dir: str | os.PathLike[str] | None = None,
) -> Values:
    """The error at the output with one node quantized and all else float, by node, worst first.

    Of each ordinary node all calibration nodes that feed it are on; of ``weight`` and
    ``activation`` each calibration node alone. A constant of which the file holds only the codes
    can't be float, so it is always on and no node of its own. Result: ``{name: {metric: value}}``
    with 5 decimals (:func:`qtune.onnx_debug.table.rounded`), sorted by the first of ``metrics``
    (:mod:`qtune.onnx_debug.metrics`). Of several outputs the worst counts, over the items the mean.

    A node whose quantization changes no value scores as perfect, exactly. Else values have a noise
    floor: segments are run with other fused operators than the float model they are compared with,
    which moves float32 results by some units in the last place (cosine: below 1e-10 from 1).

    ``output_node``: an ordinary node with calibration nodes, its output is compared instead.
    ``data_num``: how many of the items; ``None`` for all. ``interested_nodes``: only these, of any
    type; ``node_type`` doesn't count then. ``verbose``: log the table at INFO (also to the screen
    where no handler of logging is set up). ``save_dir``: write the table to
    ``node_sensitivity/sensitivity_of_<type>.log`` there.

    Raises ``ArgumentError`` for wrong arguments and data, ``OnnxImportError`` for the model.
    Source: onnx_debugger, "get_sensitivity_of_nodes".
    """
    chosen = metrics_of(metrics)
    flag("verbose", verbose)
    if node_type not in KINDS:
        raise ArgumentError(f"node_type: expected one of {', '.join(KINDS)}; got {node_type!r}")
    if calibrated_data is None:
        raise ArgumentError("calibrated_data: it is needed; give a folder, a dict or a list")
    if save_dir is not None:
        check_folder(save_dir, "save_dir")
    runner = runner_of(model_or_file, calibrated_data)
    names = _names(runner.model, node_type, interested_nodes)
    outputs = outputs_of(runner.model, output_node)
    found = sensitivities(runner, names, chosen, data_num, outputs)
    found = {name: found[name] for name in worst_first(found, chosen[0])}
    kind = node_type if interested_nodes is None else _common_kind(runner.model, names)
    _tell(_as_table(runner.model, kind, found, chosen), kind, verbose, save_dir)
    return {
        name: {key: rounded(value) for key, value in values.items()}
        for name, values in found.items()
    }


def sensitivities(
    runner: Runner,
    names: Sequence[str],
    metrics: Sequence[OnnxMetric],
    data_num: int | None,
    outputs: Sequence[str],
) -> Values:
    """Of each of ``names``, in their order: the metrics with only that node on, not rounded."""
    model = runner.model
    places = {name: index for index, name in enumerate(_graph_order(model))}
    ordered = sorted(names, key=lambda name: places[name])  # so that segments stay opened
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    count = runner.data.count(data_num)
    with progress_bar(count * len(names), "sensitivity", unit="node") as bar:
        for index, name in itertools.product(range(count), ordered):
            if name == ordered[0]:
                plain = runner.values(index, (), outputs)
            values = runner.values(index, switches_of(model, name), outputs)
            found[name].append([metric.worst(plain, values) for metric in metrics])
            bar.advance(name)
    return {
        name: {
            metric.name: metric.mean(column)
            for metric, column in zip(metrics, zip(*rows, strict=True), strict=True)
        }
        for name, rows in found.items()
    }


def worst_first(found: Mapping[str, Mapping[str, float]], metric: OnnxMetric) -> list[str]:
    """The names of ``found`` by ``metric``; equal ones in their order."""
    return sorted(found, key=lambda name: -metric.badness(found[name][metric.name]))


def switches_of(model: CalibratedModel, name: str) -> tuple[str, ...]:
    """The calibration nodes that are on where the node ``name`` is quantized."""
    return (name,) if name in model.calibrations else model.node(name).calibrations


def outputs_of(model: CalibratedModel, output_node: str | None) -> list[str]:
    """The tensors that are compared: of ``output_node``, or the model's outputs."""
    if output_node is None:
        found = [port.name for port in model.outputs if is_comparable(port.dtype)]
        if not found:
            raise ArgumentError(
                "the outputs of the model hold no numbers to compare; give output_node, or a model "
                "that ends before them"
            )
        return found
    if not isinstance(output_node, str):
        raise ArgumentError(f"output_node: expected the name of one node; got {output_node!r}")
    (name,) = chosen_nodes(model, output_node, "output_node", (NODE,))
    node = model.node(name)
    if not node.calibrations:
        raise ArgumentError(
            f"output_node: {name} has no calibration node; expected one of the "
            f"{len(model.names('node'))} nodes that have, for example {model.names('node')[0]}"
        )
    return [output for output in node.outputs if output]


def switchable(model: CalibratedModel, names: Any, argument: str) -> list[str]:
    """``names`` checked: nodes of any type at which there is something to switch."""
    chosen = chosen_nodes(model, names, argument)
    fixed = [name for name in chosen if _is_fixed(model, name)]
    if fixed:
        raise ArgumentError(
            f"{argument}: nothing can be switched at {', '.join(fixed)}: no calibration node feeds "
            "it, or only one of a constant of which the file holds the codes and no float values"
        )
    return chosen


def candidates(model: CalibratedModel, kind: str = ORDINARY) -> list[str]:
    """The nodes of the type that can be quantized alone, in graph order."""
    return [name for name in model.names(kind) if not _is_fixed(model, name)]


def _names(model: CalibratedModel, node_type: str, interested: Any) -> list[str]:
    if interested is not None:
        return switchable(model, interested, "interested_nodes")
    return candidates(model, node_type)


def _is_fixed(model: CalibratedModel, name: str) -> bool:
    return all(model.calibrations[key].is_stored for key in switches_of(model, name))


def _graph_order(model: CalibratedModel) -> list[str]:
    """Calibration nodes before the first node that they feed."""
    return [name for node in model.nodes for name in (*node.calibrations, node.name)] + list(
        model.calibrations
    )


def _common_kind(model: CalibratedModel, names: Collection[str]) -> str:
    """The type of all ``names``; where they are of several, the plainest table."""
    items = model.calibrations
    kinds = {items[name].kind if name in items else ORDINARY for name in names}
    return kinds.pop() if len(kinds) == 1 else ORDINARY


def _as_table(
    model: CalibratedModel, kind: str, found: Mapping[str, Any], metrics: Sequence[OnnxMetric]
) -> str:
    names = [metric.name for metric in metrics]
    columns = {
        ORDINARY: [ORDINARY],
        WEIGHT: [WEIGHT, ORDINARY],
        ACTIVATION: [ACTIVATION, ORDINARY, "threshold", "bit"],
    }[kind]
    rows = []
    for name, values in found.items():
        row: list[Any] = [name]
        if kind != ORDINARY:
            item = model.calibrations[name]
            row += [";".join(item.users), item.threshold, item.bits][: len(columns) - 1]
        rows.append([*row, *(values[key] for key in names)])
    return table([*columns, *names], rows)


def _tell(text: str, kind: str, verbose: bool, save_dir: str | os.PathLike[str] | None) -> None:
    if save_dir is not None:
        write_text(Path(save_dir) / FOLDER / f"sensitivity_of_{kind}.log", text + "\n")
    if verbose and _log.isEnabledFor(logging.INFO):
        if _log.hasHandlers():
            _log.info("\n%s", text)
        else:  # logging would drop it, although its level says that it is wanted
            screen.show(text)
