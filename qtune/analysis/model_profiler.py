"""``model_profiler``: the older tools on two adjacent stages, on one page (plugin guide)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from qtune.analysis.model_profile import ModelProfile, Options, page
from qtune.analysis.similarity import featuremap_similarity
from qtune.check.called import get_module_called_count
from qtune.check.qconfig_info import check_qconfig
from qtune.errors import ArgumentError
from qtune.profiler.featuremap import NAME, profile_featuremap
from qtune.profiler.histograms import FOLDER as TENSORBOARD
from qtune.profiler.observe import is_converted, is_prepared
from qtune.profiler.raw_features import get_raw_features
from qtune.profiler.weights import compare_weights
from qtune.quantization.unfused import check_unfused_operations
from qtune.quantizers.processes import unwrapped
from qtune.report.files import write_text

FOLDER, PAGE = "horizon_quant_debug", "profiler.html"
FLOAT, PREPARED, CONVERTED = "float", "prepared (calibration or QAT)", "converted"
MODES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"FvsQ": (FLOAT, PREPARED), "QvsQ": (PREPARED, CONVERTED), "CvsQ": (PREPARED, PREPARED)}
)
TOOLS = (
    "featuremap_similarity",
    "get_raw_features",
    "profile_featuremap",
    "get_module_called_count",
    "check_unfused_operations",
    "compare_weights",
    "check_qconfig",
)
_GIVEN = ("model", "model1", "model2", "example_inputs", "inputs", "featuremap")
"""What the tools get from ``model_profiler`` itself."""


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
    ``profiler.html`` and the files of all tools to ``out_dir`` (default: ``horizon_quant_debug``),
    the statistics as ``statistic_model1`` and ``statistic_model2``.
    The models are left as they were.
    """
    options = _options(kwargs_dict or {}, mode)
    model1, model2 = unwrapped(model1), unwrapped(model2)
    _check_mode(model1, model2, mode)
    folder = Path(out_dir or FOLDER)
    is_float = MODES[mode][0] == FLOAT
    prepared = model1 if mode == "QvsQ" else model2

    def run(tool: Callable[..., Any], *args: Any, **fixed: Any) -> Any:
        return tool(*args, **{**fixed, **options.get(tool.__name__, {})})

    rows = run(featuremap_similarity, model1, model2, example_inputs, out_dir=folder)
    given = options.get(profile_featuremap.__name__, {})
    statistics = []
    for name, model in (("model1", model1), ("model2", model2)):
        features = run(get_raw_features, model, example_inputs)
        own = given | _own_files(given, name, folder)
        statistics.append(profile_featuremap(features, out_dir=folder, **own))
    quiet = {"print_tabulate": False}
    calls = [run(get_module_called_count, m, example_inputs, **quiet) for m in (model1, model2)]
    unfused = run(check_unfused_operations, model1, example_inputs, **quiet) if is_float else None
    profile = ModelProfile(
        folder / PAGE,
        rows,
        (statistics[0], statistics[1]),
        (calls[0], calls[1]),
        unfused,
        run(compare_weights, model1, model2, out_dir=folder),
        run(check_qconfig, prepared, example_inputs, out_dir=folder),
    )
    subtitle = f"{mode}: {MODES[mode][0]} and {MODES[mode][1]} model"
    write_text(profile.page, page(profile, subtitle, options))
    return profile


def _own_files(given: Mapping[str, Any], model: str, folder: Path) -> dict[str, Any]:
    """Files and folders of the statistics of one of the two models."""
    stem, events = given.get("file_name") or NAME, given.get("tensorboard_dir")
    return {
        "file_name": f"{stem}_{model}",
        "tensorboard_dir": Path(events or folder / TENSORBOARD) / model,
    }


def _options(given: Options, mode: str) -> dict[str, dict[str, Any]]:
    """The arguments of each tool, without ``out_dir``."""
    unknown = [tool for tool in given if tool not in TOOLS]
    if unknown:
        raise ArgumentError(
            f"model_profiler: kwargs_dict has {', '.join(unknown)}; the tools are "
            f"{', '.join(TOOLS)}"
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
        in_place = " (was it converted in place? Convert a copy)" if kinds[0] == CONVERTED else ""
        raise ArgumentError(
            f"model_profiler: mode {mode} compares a {MODES[mode][0]} with a {MODES[mode][1]} "
            f"model, in this order; got a {kinds[0]} and a {kinds[1]} one{in_place}"
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
