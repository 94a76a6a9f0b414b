"""``runall``: all of the debugger in six steps (onnx_debugger, "runall")."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.accumulated import plot_acc_error
from qtune.onnx_debug.build.named import flag
from qtune.onnx_debug.calibrated import ACTIVATION, WEIGHT, CalibratedModel
from qtune.onnx_debug.channels import check_axis, get_channelwise_data_distribution
from qtune.onnx_debug.chosen import CALIBRATION, NODE, chosen_nodes
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.distribution import plot_distribution
from qtune.onnx_debug.distribution_stream import runner_of
from qtune.onnx_debug.freed import check_threshold, sensitivity_analysis
from qtune.onnx_debug.metrics import DEFAULT, metric, metrics
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.sensitivity import (
    FOLDER,
    KINDS,
    Values,
    get_sensitivity_of_nodes,
    outputs_of,
    switchable,
    switches_of,
)
from qtune.report.files import check_folder

DISTRIBUTION, CHANNELWISE = "data_distribution", "channelwise_distribution"
ACCUMULATED, FREED = "accumulate_error", "sensitivity_analysis"
FOLDERS = (FOLDER, DISTRIBUTION, CHANNELWISE, ACCUMULATED, FREED)
TOP = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunAll:
    """What runall found. ``sensitivity``: the result of ``get_sensitivity_of_nodes`` for each type
    of nodes that was ranked; ``files``: everything that lies in the folder now and was written."""

    sensitivity: Mapping[str, Values]
    files: tuple[Path, ...]


def runall(
    model_or_file: Any,
    calibrated_data: Given | CalibrationDataSet | Runner,
    save_dir: str | os.PathLike[str] = "./debug_result/",
    ns_metrics: str | Sequence[str] = DEFAULT,
    output_node: str | None = None,
    node_type: str | None = None,
    data_num: int | None = None,
    verbose: bool = False,
    interested_nodes: str | Sequence[str] | None = None,
    dis_nodes_list: str | Sequence[str] | None = None,
    cw_nodes_list: str | Sequence[str] | None = None,
    axis: int | None = None,
    quantize_node: Any = None,
    non_quantize_node: Any = None,
    ae_metric: str = DEFAULT,
    average_mode: bool = False,
    pick_threshold: float = 0.999,
    sensitive_nodes: str | Sequence[str] | None = None,
) -> RunAll:
    """Rank the nodes, draw those on top, the accumulated error and the sensitivity analysis.

    1, 2. Sensitivity of the weight and of the activation calibration nodes
       (``node_sensitivity/sensitivity_of_{weight,activation}.log``); with ``node_type`` or
       ``interested_nodes`` only of these.
    3. Distributions of the five worst of each (``data_distribution/``), or of ``dis_nodes_list``;
       of ordinary nodes, the calibration nodes that feed them are drawn.
    4. Box plots of their channels (``channelwise_distribution/``), or of ``cw_nodes_list``.
    5. Accumulated errors (``accumulate_error/``) of ``quantize_node`` and ``non_quantize_node``; if
       both are ``None``, of all weights and of all activations.
    6. Sensitivity analysis (``sensitivity_analysis/``).

    The parameters are those of the functions with the same or a similar name. The model is loaded
    once. Raises what they raise, before the first step; only that a tensor lacks ``axis`` shows in
    step 4.
    """
    check_folder(save_dir, "save_dir")
    _check_values(ns_metrics, ae_metric, verbose, average_mode, axis, pick_threshold)
    runner = runner_of(model_or_file, calibrated_data)
    steps = _Steps(runner, Path(save_dir))
    steps.check(node_type, quantize_node, non_quantize_node)
    steps.check_nodes(output_node, interested_nodes, sensitive_nodes)
    runner.data.count(data_num)
    shown = _optional(runner.model, dis_nodes_list, "dis_nodes_list")
    boxed = _optional(runner.model, cw_nodes_list, "cw_nodes_list", (CALIBRATION,))
    before = _files(steps.folder)
    found = {}
    for kind in _kinds(node_type, interested_nodes):
        _log.info("steps 1 and 2: sensitivity (%s)", kind)
        found[kind] = get_sensitivity_of_nodes(
            **steps.given,
            metrics=ns_metrics,
            output_node=output_node,
            node_type=kind,
            data_num=data_num,
            verbose=verbose,
            interested_nodes=interested_nodes,
            save_dir=steps.folder,
        )
    steps.draw(shown or steps.worst(found), boxed, axis)
    nothing_given = quantize_node is None and non_quantize_node is None
    _log.info("step 5: accumulated error")
    plot_acc_error(
        **steps.given,
        quantize_node=[WEIGHT, ACTIVATION] if nothing_given else quantize_node,
        non_quantize_node=non_quantize_node,
        metric=ae_metric,
        average_mode=average_mode,
        save_dir=steps.folder / ACCUMULATED,
    )
    _log.info("step 6: sensitivity analysis")
    sensitivity_analysis(
        **steps.given,
        pick_threshold=pick_threshold,
        data_num=data_num,
        sensitive_nodes=sensitive_nodes,
        save_dir=steps.folder / FREED,
    )
    after = _files(steps.folder)
    return RunAll(found, tuple(path for path in sorted(after) if before.get(path) != after[path]))


class _Steps:
    """What the steps have in common: the model, loaded once, and where they write."""

    def __init__(self, runner: Runner, folder: Path) -> None:
        self.model = runner.model
        self.folder = folder
        self.given: dict[str, Any] = {"model_or_file": runner.model, "calibrated_data": runner}

    def check(self, node_type: Any, quantize: Any, free: Any) -> None:
        """Raise now what a late step would raise after all the others."""
        if node_type not in (None, *KINDS):
            raise ArgumentError(
                f"node_type: expected one of {', '.join(KINDS)} or None; got {node_type!r}"
            )
        if quantize is not None and free is not None:
            raise ArgumentError("give only one of quantize_node and non_quantize_node")
        _check_groups(self.model, quantize, "quantize_node")
        _check_groups(self.model, free, "non_quantize_node")

    def check_nodes(self, output_node: Any, interested: Any, sensitive: Any) -> None:
        """The same for names of nodes."""
        outputs_of(self.model, output_node)
        if interested is not None:
            switchable(self.model, interested, "interested_nodes")
        if sensitive:
            switchable(self.model, sensitive, "sensitive_nodes")

    def worst(self, found: Mapping[str, Values]) -> list[str]:
        """The calibration nodes of the worst nodes of each type."""
        names = (name for values in found.values() for name in list(values)[:TOP])
        return _calibrations(self.model, names)

    def draw(self, shown: Sequence[str], boxed: Sequence[str], axis: int | None) -> None:
        """Steps 3 and 4; without ``boxed`` step 4 takes the calibration nodes of ``shown``."""
        if shown:
            _log.info("step 3: distribution of %s", ", ".join(shown))
            plot_distribution(**self.given, nodes_list=shown, save_dir=self.folder / DISTRIBUTION)
        boxed = boxed or _calibrations(self.model, shown)
        if boxed:
            _log.info("step 4: channels of %s", ", ".join(boxed))
            get_channelwise_data_distribution(
                **self.given, nodes_list=boxed, axis=axis, save_dir=self.folder / CHANNELWISE
            )


def _check_values(
    ns_metrics: Any, ae_metric: Any, verbose: Any, average_mode: Any, axis: Any, threshold: Any
) -> None:
    metrics(ns_metrics, "ns_metrics")
    metric(ae_metric, "ae_metric")
    flag("verbose", verbose)
    flag("average_mode", average_mode)
    check_axis(axis)
    check_threshold(threshold)


def _kinds(node_type: str | None, interested_nodes: Any) -> tuple[str, ...]:
    """The types that are ranked, one after the other."""
    if interested_nodes is not None:
        return (KINDS[0],)  # of whatever type they are
    return (WEIGHT, ACTIVATION) if node_type is None else (node_type,)


def _optional(
    model: CalibratedModel, names: Any, argument: str, kinds: Sequence[str] = (NODE, CALIBRATION)
) -> list[str]:
    return [] if names is None else chosen_nodes(model, names, argument, kinds)


def _check_groups(model: CalibratedModel, given: Any, argument: str) -> None:
    """That the names in a list, or in lists of a list, are nodes that can be switched."""
    listed = given if isinstance(given, (list, tuple)) else [given]
    for item in listed:
        names = [item] if isinstance(item, str) else item
        others = [name for name in names or () if name not in (WEIGHT, ACTIVATION)]
        if others:
            switchable(model, others, argument)


def _calibrations(model: CalibratedModel, names: Iterable[str]) -> list[str]:
    """The calibration nodes among ``names``, and those that feed the ordinary nodes among them."""
    found = [switches_of(model, name) for name in names]
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """What lies in the folders of runall, and which file it is."""
    paths = [path for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}
