"""``model_profiler``: the older tools on two adjacent stages, and ``profiler.html`` (plugin guide)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from qtune.analysis.similarity import Row, featuremap_similarity, similarity_section
from qtune.check.called import COLUMNS as CALL_COLUMNS
from qtune.check.called import get_module_called_count
from qtune.check.qconfig_info import check_qconfig
from qtune.check.report import CheckReport, message_table, output_table, weight_table
from qtune.errors import ArgumentError
from qtune.profiler.metric import Metric
from qtune.profiler.observe import is_prepared
from qtune.profiler.observe_converted import is_converted
from qtune.profiler.similarity_function import similarity
from qtune.profiler.weights import COLUMNS as WEIGHT_COLUMNS
from qtune.profiler.weights import compare_weights
from qtune.quantization.unfused import check_unfused_operations
from qtune.report.files import write_text
from qtune.report.page import Section, Table, render

FOLDER, PAGE = "horizon_quant_debug", "profiler.html"
FLOAT, PREPARED, CONVERTED = "float", "prepared (calibration or QAT)", "converted"
MODES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"FvsQ": (FLOAT, PREPARED), "QvsQ": (PREPARED, CONVERTED), "CvsQ": (PREPARED, PREPARED)}
)
TOOLS = (
    "featuremap_similarity",
    "get_module_called_count",
    "check_unfused_operations",
    "compare_weights",
    "check_qconfig",
)
_GIVEN = ("model", "model1", "model2", "example_inputs", "inputs", "featuremap")
"""What the tools get from ``model_profiler`` itself."""

Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What the tools returned. ``unfused``: ``None`` without a float model. ``page``: the file."""

    page: Path
    similarity: list[Row]
    calls: tuple[dict[str, int], dict[str, int]]
    unfused: list[list[str]] | None
    weights: dict[str, dict[str, Tensor]]
    qconfig: CheckReport


def model_profiler(
    model1: nn.Module,
    model2: nn.Module,
    example_inputs: Any,
    mode: str,
    out_dir: str | os.PathLike[str] | None = None,
    kwargs_dict: Options | None = None,
) -> ModelProfile:
    """Run the older tools on two adjacent stages of a model and show all results on one page.

    ``mode``: ``FvsQ`` float and prepared, ``QvsQ`` prepared and converted, ``CvsQ`` calibration and
    QAT; in this order, others are refused by name. ``kwargs_dict``: tool -> its own arguments
    (``TOOLS``); the models, their inputs and ``out_dir`` are those given here. Writes
    ``profiler.html`` and the files of all tools to ``out_dir`` (default: ``horizon_quant_debug``).
    The models are left as they were.
    """
    options = _options(kwargs_dict or {}, mode)
    _check_mode(model1, model2, mode)
    folder = Path(out_dir or FOLDER)
    is_float = MODES[mode][0] == FLOAT
    prepared = model1 if mode == "QvsQ" else model2

    def run(tool: Callable[..., Any], *args: Any, **fixed: Any) -> Any:
        return tool(*args, **{**fixed, **options.get(tool.__name__, {})})

    rows = run(featuremap_similarity, model1, model2, example_inputs, out_dir=folder)
    quiet = {"print_tabulate": False}
    calls = [run(get_module_called_count, m, example_inputs, **quiet) for m in (model1, model2)]
    unfused = run(check_unfused_operations, model1, example_inputs, **quiet) if is_float else None
    weights = run(compare_weights, model1, model2, out_dir=folder)
    qconfig = run(check_qconfig, prepared, example_inputs, out_dir=folder)
    profile = ModelProfile(folder / PAGE, rows, (calls[0], calls[1]), unfused, weights, qconfig)
    write_text(profile.page, _page(profile, mode, options))
    return profile


def _options(given: Options, mode: str) -> dict[str, dict[str, Any]]:
    """The arguments of each tool, without ``out_dir``."""
    unknown = [tool for tool in given if tool not in TOOLS]
    if unknown:
        raise ArgumentError(
            f"model_profiler: kwargs_dict has {', '.join(unknown)}; the tools are {', '.join(TOOLS)}"
        )
    if "check_unfused_operations" in given and MODES.get(mode, (FLOAT,))[0] != FLOAT:
        raise ArgumentError(
            f"model_profiler: check_unfused_operations takes a float model, and mode {mode} has "
            "none; leave it out of kwargs_dict"
        )
    for tool, arguments in given.items():
        wrong = [name for name in arguments if name in _GIVEN]
        if wrong:
            raise ArgumentError(
                f"model_profiler: kwargs_dict[{tool!r}] has {', '.join(wrong)}, which "
                "model_profiler gives to the tools itself; leave it out"
            )
    return {
        tool: {name: value for name, value in arguments.items() if name != "out_dir"}
        for tool, arguments in given.items()
    }


def _check_mode(model1: nn.Module, model2: nn.Module, mode: str) -> None:
    if mode not in MODES:
        raise ArgumentError(f"model_profiler: mode must be {', '.join(MODES)}, got {mode!r}")
    kinds = _kind(model1), _kind(model2)
    if kinds != MODES[mode]:
        raise ArgumentError(
            f"model_profiler: mode {mode} compares a {MODES[mode][0]} with a {MODES[mode][1]} "
            f"model, in this order; got a {kinds[0]} and a {kinds[1]} one"
        )


def _kind(model: Any) -> str:
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"model_profiler: expected torch modules but got {type(model).__name__}; "
            "QuantAnalysis compares HBIR modules"
        )
    if is_converted(model):
        return CONVERTED
    return PREPARED if is_prepared(model) else FLOAT


def _page(profile: ModelProfile, mode: str, options: Options) -> str:
    chosen = options.get("featuremap_similarity", {})
    distance = similarity(chosen.get("similarity_func", "Cosine"), "model_profiler")
    sections = [
        similarity_section(profile.similarity, distance, chosen.get("threshold")),
        Section("Calls of each module", tables=[_calls(profile)]),
        *_unfused(profile.unfused),
        Section("Weights", tables=[_weights(profile, options)]),
        Section("Qconfig", preformatted=_qconfig(profile.qconfig)),
    ]
    subtitle = f"{mode}: {MODES[mode][0]} and {MODES[mode][1]} model"
    return render("Profile of two stages", sections, subtitle=subtitle, sortable=True)


def _calls(profile: ModelProfile) -> Table:
    name, times = CALL_COLUMNS
    columns = (name, f"{times} (first)", f"{times} (second)")
    names = dict.fromkeys([*profile.calls[0], *profile.calls[1]])
    rows = [
        {columns[0]: item, columns[1]: a, columns[2]: b, "bad": (a or 1, b or 1) != (1, 1)}
        for item in names
        for a, b in [(profile.calls[0].get(item), profile.calls[1].get(item))]
    ]
    return Table(columns, rows, bad="bad", numeric=columns[1:])


def _unfused(groups: list[list[str]] | None) -> list[Section]:
    if groups is None:
        return []
    text = [", ".join(group) for group in groups] or ["All fusable modules are fused."]
    return [Section("Fusable modules that are not fused", text=text)]


def _weights(profile: ModelProfile, options: Options) -> Table:
    name, value, atol = WEIGHT_COLUMNS
    given = options.get("compare_weights", {}).get("similarity_func", "Cosine")
    distance = similarity(given, "model_profiler")
    rows = [
        {
            name: weight,
            value: distance(pair["float"], pair["quantized"]),
            atol: Metric.ATOL(pair["float"], pair["quantized"]),
        }
        for weight, pair in profile.weights.items()
    ]
    return Table(WEIGHT_COLUMNS, rows, numeric=WEIGHT_COLUMNS[1:])


def _qconfig(report: CheckReport) -> list[str]:
    tables = [output_table(report.outputs), weight_table(report.weights)]
    return [*tables, message_table(report.messages)]
