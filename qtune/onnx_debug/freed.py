"""``sensitivity_analysis``: sensitive nodes quantized alone, and given back one after the other."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qtune.errors import ArgumentError
from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug.build.named import flag
from qtune.onnx_debug.calibrated import ACTIVATION, CalibratedModel, CalibrationNode
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.distribution_stream import runner_of
from qtune.onnx_debug.metrics import DEFAULT, OnnxMetric
from qtune.onnx_debug.metrics import metric as metric_of
from qtune.onnx_debug.names import file_stem
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.sensitivity import (
    candidates,
    outputs_of,
    sensitivities,
    switchable,
    switches_of,
    worst_first,
)
from qtune.report.files import check_folder
from qtune.report.progress import progress

FLOAT, INT16 = "float32", "int16"
NONE = "none"
STEM = "sensitivity_analysis"
_WIDE = 16

_log = logging.getLogger(__name__)
_On = Mapping[str, CalibrationNode]


@dataclass(frozen=True, slots=True)
class FreedSeries:
    """One figure. ``output``: the tensor it is about, ``None`` for the worst of all outputs.

    ``only_current``, ``freed``: one value for each of the ticks ``none``, node, node, ...
    """

    output: str | None
    only_current: tuple[float, ...]
    freed: tuple[float, ...]
    file: Path


@dataclass(frozen=True, slots=True)
class SensitivityAnalysis:
    """``nodes``: the sensitive ones, worst first. ``baseline``: the float model against itself."""

    metric: str
    qtype: str
    nodes: tuple[str, ...]
    baseline: float
    series: tuple[FreedSeries, ...]


def sensitivity_analysis(
    model_or_file: Any,
    calibrated_data: Given | CalibrationDataSet | Runner,
    metric: str = DEFAULT,
    pick_threshold: float = 0.999,
    data_num: int | None = 1,
    sensitive_nodes: str | Sequence[str] | None = None,
    qtype: str = FLOAT,
    output_separated: bool = False,
    save_dir: str | os.PathLike[str] = "./debug_result/",
) -> SensitivityAnalysis:
    """What giving back the sensitive nodes, one after the other, is worth; with the figure.

    Sensitive are ordinary nodes whose sensitivity is worse than ``pick_threshold`` (below it for
    cosine-similarity and sqnr, above it for mse, mre and chebyshev), worst first; or
    ``sensitive_nodes`` (of any type) in their order, where any are given. The series, over the
    ticks ``none`` and the nodes: the baseline (float against itself); *only quantize current
    node*, at ``none`` nothing is, so it is the baseline; and *don't quantize current node and all
    before it*, at ``none`` the calibrated model. ``qtype="int16"`` gives nodes 16 bits instead of
    float: their activations, with scales ``T / 32767.5``; weights stay as they are, since no int16
    weights are computed with. ``output_separated``: a figure for each output instead of the worst.
    Values are means over ``data_num`` items (``None``: all).

    Writes ``<save_dir>/sensitivity_analysis.png``, or ``sensitivity_analysis_<output>.png`` of each
    output. Raises ``ArgumentError``. Source: onnx_debugger, "sensitivity_analysis".
    """
    chosen = metric_of(metric)
    if qtype not in (FLOAT, INT16):
        raise ArgumentError(f"qtype: expected {FLOAT} or {INT16}; got {qtype!r}")
    check_threshold(pick_threshold)
    flag("output_separated", output_separated)
    check_folder(save_dir, "save_dir")
    runner = runner_of(model_or_file, calibrated_data)
    runner.data.count(data_num)
    if sensitive_nodes:
        nodes = switchable(runner.model, sensitive_nodes, "sensitive_nodes")
        _check_widths(runner.model, nodes, qtype)
    else:
        nodes = _picked(runner, chosen, pick_threshold, data_num)
    on = [*_alone(runner.model, nodes), *_given_back(runner.model, nodes, qtype)]
    scores = _scores(runner, on, chosen, data_num, output_separated)
    ticks = (NONE, *nodes)
    taken: set[str] = set()
    series = []
    for output, values in scores.items():
        alone, freed = (chosen.perfect, *values[: len(nodes)]), tuple(values[len(nodes) :])
        stem = STEM if output is None else f"{STEM}_{file_stem(output, taken)}"
        file = Path(save_dir) / f"{stem}.png"
        series.append(
            FreedSeries(output, alone, freed, _draw(file, ticks, alone, freed, chosen, qtype))
        )
    return SensitivityAnalysis(chosen.name, qtype, tuple(nodes), chosen.perfect, tuple(series))


def check_threshold(value: Any) -> None:
    """Raise ``ArgumentError`` if ``value`` is no ``pick_threshold``."""
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if not is_number or isinstance(value, bool) or np.isnan(value):
        raise ArgumentError(f"pick_threshold: expected a number but got {value!r}")


def _check_widths(model: CalibratedModel, nodes: Sequence[str], qtype: str) -> None:
    """Nodes that somebody names must change with the type."""
    for name in nodes if qtype == INT16 else ():
        if all(model.calibrations[key].kind != ACTIVATION for key in switches_of(model, name)):
            raise ArgumentError(f"sensitive_nodes: {name} has no activation to give 16 bits")


def _picked(
    runner: Runner, metric: OnnxMetric, threshold: float, data_num: int | None
) -> list[str]:
    model = runner.model
    found = sensitivities(runner, candidates(model), [metric], data_num, outputs_of(model, None))
    limit = metric.badness(float(threshold))
    picked = [
        n for n in worst_first(found, metric) if metric.badness(found[n][metric.name]) > limit
    ]
    if not picked:
        side = "below" if metric.is_similarity else "above"
        _log.warning(
            "no node has a %s %s %g; nothing to give back. Move pick_threshold, or name "
            "sensitive_nodes",
            metric.name,
            side,
            threshold,
        )
    return picked


def _alone(model: CalibratedModel, nodes: Sequence[str]) -> list[_On]:
    return [{key: model.calibrations[key] for key in switches_of(model, name)} for name in nodes]


def _given_back(model: CalibratedModel, nodes: Sequence[str], qtype: str) -> list[_On]:
    """All on; then without the first node, without the first two, ..."""
    current = dict(model.calibrations)
    found: list[_On] = [dict(current)]
    for name in nodes:
        for key in switches_of(model, name):
            item = model.calibrations[key]
            if qtype == FLOAT:
                current.pop(key, None)
            elif item.kind == ACTIVATION:
                current[key] = widened(item)
        found.append(dict(current))
    return found


def widened(item: CalibrationNode) -> CalibrationNode:
    """``item`` with 16 bits: the same thresholds ``T``, scales ``T / 32767.5``."""
    thresholds = item.thresholds
    scales = (thresholds / np.float32((2**_WIDE - 1) / 2)).astype(np.float32)
    held = Calibration(scales, thresholds, _WIDE, item.axis)
    node = hz_calibration.make_node(item.name, item.source, item.output, held)
    return replace(item, nodes=(node,), scales=scales, thresholds=thresholds, bits=_WIDE)


def _scores(
    runner: Runner,
    on: Sequence[_On],
    metric: OnnxMetric,
    data_num: int | None,
    is_separated: bool,
) -> dict[str | None, list[float]]:
    """Of each output (or of the worst, ``None``) the value for each choice of nodes."""
    outputs = outputs_of(runner.model, None)
    groups: dict[str | None, list[str]] = {name: [name] for name in outputs}
    if not is_separated:
        groups = {None: outputs}
    found: dict[str | None, list[list[float]]] = {key: [[] for _ in on] for key in groups}
    count = runner.data.count(data_num)
    steps = [(index, place) for index in range(count) for place in range(len(on))]
    for index, place in progress(steps, "sensitivity analysis", unit="run"):
        plain = runner.values(index, (), outputs)
        values = runner.values(index, on[place], outputs)
        for key, names in groups.items():
            found[key][place].append(metric.worst({n: plain[n] for n in names}, values))
    return {key: [metric.mean(item) for item in items] for key, items in found.items()}


def _draw(
    file: Path,
    ticks: Sequence[str],
    alone: Sequence[float],
    freed: Sequence[float],
    metric: OnnxMetric,
    qtype: str,
) -> Path:
    from qtune.onnx_debug.pictures import draw_sensitivity

    return draw_sensitivity(
        file, ticks, alone, freed, metric.name, baseline=metric.perfect, qtype=qtype
    )
