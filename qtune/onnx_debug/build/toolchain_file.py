"""The toolchain's yaml of a conversion, as arguments of ``build_model``.

Keys of the groups model, input and calibration parameters are honoured. Keys that only concern the
board or its compiler have no effect here; they are named in the log. What would change numbers but
has no form here is refused, and so is every key that is not known.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.config import ROOT
from qtune.onnx_debug.build.config_activation import LOAD, SKIP, check_method
from qtune.onnx_debug.build.config_file import read_mapping
from qtune.onnx_debug.build.named import check_keys, one_of, section

_log = logging.getLogger(__name__)

_HONOURED = {
    "model_parameters": (
        "onnx_model",
        "march",
        "working_dir",
        "output_model_file_prefix",
        "output_nodes",
        "debug_mode",
        "node_info",
    ),
    "input_parameters": ("input_name", "input_shape"),
    "calibration_parameters": (
        "cal_data_dir",
        "calibration_type",
        "max_percentile",
        "per_channel",
        "quant_config",
        "optimization",
        "run_on_cpu",
    ),
    "compiler_parameters": (),
}
_IGNORED = {
    "model_parameters": ("layer_out_dump", "log_level", "advice", "enable_vpu"),
    "input_parameters": (
        "input_type_rt",
        "input_type_train",
        "input_layout_rt",
        "input_layout_train",
        "input_space_and_range",
        "input_batch",
        "separate_batch",
        "separate_name",
    ),
    "calibration_parameters": ("cal_data_type", "preprocess_on", "run_on_bpu"),
    "compiler_parameters": (
        "compile_mode",
        "balance_factor",
        "debug",
        "core_num",
        "optimize_level",
        "jobs",
        "input_source",
        "max_time_per_fc",
        "hbdk3_compatible_mode",
        "cache_path",
        "cache_mode",
        "advice",
        "ability_entry",
        "extra_params",
        "input_no_padding",
        "output_no_padding",
        "max_l2m_size",
    ),
}
_REFUSED = {
    "model_parameters": {
        "prototxt": "Caffe models are not read; export the model to ONNX",
        "caffe_model": "Caffe models are not read; export the model to ONNX",
        "remove_node_type": "cut the model with output_nodes, or before",
        "remove_node_name": "cut the model with output_nodes, or before",
    },
    "input_parameters": dict.fromkeys(
        ("mean_value", "scale_value", "std_value", "norm_type"),
        "normalize the calibration data, or put the normalization into the model",
    ),
    "calibration_parameters": {},
    "compiler_parameters": {},
}
_TEXTS = (
    "onnx_model",
    "march",
    "working_dir",
    "output_model_file_prefix",
    "calibration_type",
)
_LISTS = (
    "output_nodes",
    "debug_mode",
    "input_name",
    "input_shape",
    "cal_data_dir",
    "optimization",
    "run_on_cpu",
)
"""Keys whose value is a text, several in it parted by semicolons, or a list of texts."""

_NO_NORM = "no_preprocess"
_DEFAULT = "default"
"""The ``calibration_type`` that leaves the choice to the build."""


@dataclass(frozen=True, slots=True)
class ToolchainFile:
    """``arguments``: of ``build_model``. ``ignored``: ``group.key`` of what has no effect here."""

    arguments: Mapping[str, Any]
    ignored: tuple[str, ...]


def read_toolchain_file(path: str | os.PathLike[str]) -> ToolchainFile:
    """The file as arguments of ``build_model``; relative paths are those of its folder.

    Raises ``ArgumentError`` for what is unknown or wrong, ``NotImplementedError`` for what has no
    form here.
    """
    raw = check_keys(str(path), read_mapping(path, "--config"), _HONOURED, "group")
    groups: dict[str, Mapping[str, Any]] = {}
    ignored: list[str] = []
    for group, known in _HONOURED.items():
        allowed = (*known, *_IGNORED[group], *_REFUSED[group])
        given = section(f"{path}: {group}", raw.get(group), allowed)
        groups[group] = {key: value for key, value in given.items() if value not in (None, "")}
        ignored += [f"{group}.{key}" for key in groups[group] if key in _IGNORED[group]]
        _refuse(group, groups[group])
        _check_texts(group, groups[group])
    if ignored:
        _log.warning("%s: these concern the board and have no effect: %s", path, ", ".join(ignored))
    return ToolchainFile(_arguments(groups, Path(path).parent), tuple(ignored))


def _refuse(group: str, given: Mapping[str, Any]) -> None:
    for key, hint in _REFUSED[group].items():
        if key in given and given[key] != _NO_NORM:
            raise NotImplementedError(f"{group}: {key} has no form here: {hint}")


def _check_texts(group: str, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        listed = value if key in _LISTS and isinstance(value, list) else [value]
        if key in (*_TEXTS, *_LISTS) and not all(isinstance(item, str) for item in listed):
            more = ", or a list of them" if key in _LISTS else ""
            raise ArgumentError(f"{group}: {key}: expected a text{more}, got {value!r}")


def _arguments(groups: Mapping[str, Mapping[str, Any]], base: Path) -> dict[str, Any]:
    model, calibration = groups["model_parameters"], groups["calibration_parameters"]
    if "onnx_model" not in model:
        raise ArgumentError("model_parameters: onnx_model is missing; it is the path of the model")
    names = _split(groups["input_parameters"].get("input_name"))
    where = "calibration_parameters: calibration_type"
    kind = check_method(where, calibration.get("calibration_type", _DEFAULT), _DEFAULT)
    folder = base / str(model.get("working_dir", "model_output"))
    found = {
        "onnx_model": str(base / str(model["onnx_model"])),
        "name_prefix": str(folder / str(model.get("output_model_file_prefix", "model"))),
        "march": model.get("march"),
        "output_nodes": _split(model.get("output_nodes")) or None,
        "debug_methods": model.get("debug_mode"),
        "input_dict": _shapes(names, groups["input_parameters"].get("input_shape")),
        "quant_config": _config(kind, model, calibration, base),
        "optimization_methods": calibration.get("optimization"),
        "cali_data": None if kind == SKIP else _data(calibration, names, base, kind),
    }
    return {key: value for key, value in found.items() if value is not None}


def _split(given: Any) -> list[str]:
    listed = given if isinstance(given, list) else str(given or "").split(";")
    return [str(item).strip() for item in listed if str(item).strip()]


def _shapes(names: list[str], given: Any) -> dict[str, Any] | None:
    texts = _split(given)
    if not texts:
        return None
    if len(texts) != len(names):
        raise ArgumentError(
            f"input_parameters: {len(texts)} input_shape for {len(names)} input_name; there must "
            "be one for each"
        )
    try:
        sizes = [[int(size) for size in text.lower().split("x")] for text in texts]
    except ValueError:
        raise ArgumentError(
            f"input_parameters: input_shape must read like 1x3x224x224, got {given!r}"
        ) from None
    return {name: {"input_shape": size} for name, size in zip(names, sizes, strict=True)}


def _data(calibration: Mapping[str, Any], names: list[str], base: Path, kind: str) -> Any:
    """One folder with a folder for each input, or one folder of .npy files for each input."""
    folders = [base / text for text in _split(calibration.get("cal_data_dir"))]
    if not folders and kind == LOAD:
        return None
    if not folders:
        raise ArgumentError(
            "calibration_parameters: cal_data_dir is missing; it is the folder of the data "
            "(calibration_type skip and load need none)"
        )
    if len(folders) == 1 and not list(folders[0].glob("*.npy")):
        return str(folders[0])
    if len(folders) != len(names):
        raise ArgumentError(
            f"calibration_parameters: cal_data_dir names {len(folders)} folder(s) of files for "
            f"{len(names)} input_name; there must be one for each"
        )
    return dict(zip(names, map(str, folders), strict=True))


def _config(
    kind: str, model: Mapping[str, Any], calibration: Mapping[str, Any], base: Path
) -> dict[str, Any]:
    given = calibration.get("quant_config", {})
    path = base / given if isinstance(given, str) else given
    config = dict(given if isinstance(given, Mapping) else read_mapping(path, ROOT))
    activation = {
        "calibration_type": None if kind == _DEFAULT else kind,
        "max_percentile": calibration.get("max_percentile"),
        "per_channel": calibration.get("per_channel"),
    }
    nodes = _node_info(model.get("node_info", {}))
    nodes |= {name: {"qtype": "float32"} for name in _split(calibration.get("run_on_cpu"))}
    _add(config, "node_config", nodes)
    used = {key: value for key, value in activation.items() if value is not None}
    if used:
        level = dict(section(f"{ROOT}: model_config", config.get("model_config")))
        _add(level, "activation", used)
        config["model_config"] = level
    return config


def _add(target: dict[str, Any], key: str, entries: Mapping[str, Any]) -> None:
    before = section(f"{ROOT}: {key}", target.get(key))
    twice = sorted(set(before) & set(entries))
    if twice:
        raise ArgumentError(f"quant_config: {key}: {', '.join(twice)} is set there and in the yaml")
    if entries:
        target[key] = {**before, **entries}


def _node_info(given: Any) -> dict[str, dict[str, str]]:
    """``{node: {ON: CPU, InputType: int16, InputType0: int16}}`` as entries of node_config."""
    if not isinstance(given, Mapping):
        raise ArgumentError(
            "model_parameters: node_info must be a dict {node: {'ON': 'CPU', 'InputType': "
            f"'int16'}}}}, got {given!r}"
        )
    found: dict[str, dict[str, str]] = {}
    for name, entry in given.items():
        where = f"model_parameters: node_info: {name}"
        check_keys(where, entry, entry)
        numbered = [key for key in entry if str(key).startswith("InputType") and key[9:].isdigit()]
        check_keys(where, entry, ("ON", "InputType", "OutputType", *numbered))
        if "OutputType" in entry:
            raise NotImplementedError(
                f"{where}: OutputType has no form here; set the InputType of the nodes that read it"
            )
        made = {f"input{key[9:]}": entry[key] for key in numbered}
        if "InputType" in entry:
            made["qtype"] = entry["InputType"]
        if one_of(f"{where}: ON", entry.get("ON", "BPU"), ("BPU", "CPU", "JIT")) != "BPU":
            if made:
                raise ArgumentError(
                    f"{where}: a node on the {entry['ON']} computes in float; leave InputType out"
                )
            made["qtype"] = "float32"
        found[str(name)] = made
    return found
