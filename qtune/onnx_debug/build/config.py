"""``quant_config``: what the user sets at the levels model, operator type, node and subgraph.

Keys and meaning: toolchain_facts 9.3. Where the toolchain leaves something open: a node's own entry
wins over the subgraph it lies in, that over its operator type, that over ``all_node_type``.
Thresholds of single inputs have no documented form there; theirs is that of the torch side's
templates, ``{"dtype": ..., "threshold": ...}``, with the word of this file, ``qtype``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.config_activation import LOAD, SKIP, read_activation
from qtune.onnx_debug.build.config_file import read_mapping
from qtune.onnx_debug.build.methods import Method
from qtune.onnx_debug.build.named import check_keys, one_of, section
from qtune.onnx_debug.metrics import DEFAULT as DEFAULT_METRIC
from qtune.onnx_debug.metrics import metric

BITS = {"int8": 8, "int16": 16, "float32": 32}
ROOT = "quant_config"
LEVELS = ("model_config", "op_config", "node_config", "subgraph_config")
_MODEL = (
    "all_node_type",
    "model_output_type",
    "activation",
    "weight",
    "modelwise_search",
    "layerwise_search",
)


@dataclass(frozen=True, slots=True)
class BiasCorrection:
    """Take the mean error of a GEMM's output over ``num_sample`` items off its bias, where that
    betters ``metric`` of the output."""

    num_sample: int
    metric: str


@dataclass(frozen=True, slots=True)
class Subgraph:
    """What lies between ``inputs`` and ``outputs`` (names of tensors)."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bits: int


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """``bits`` of all inputs of a node, and of single ones by index.

    ``thresholds``: by index, what the largest magnitude on the input's grid is fixed to; the index
    -1 means the only activation that the node reads.
    """

    bits: int | None = None
    inputs: Mapping[int, int] = field(default_factory=dict)
    thresholds: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """A checked configuration. ``methods``: empty for the automatic choice. ``skips``: random data
    serve (``calibration_type: skip``). ``None``: not asked."""

    methods: tuple[Method, ...] = ()
    skips: bool = False
    loads: bool = False
    all_bits: int | None = None
    output_bits: int | None = None
    ops: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, NodeSetting] = field(default_factory=dict)
    subgraphs: Mapping[str, Subgraph] = field(default_factory=dict)
    bias_correction: BiasCorrection | None = None
    modelwise_search: str | None = None
    layerwise_search: str | None = None


def read_config(given: Mapping[str, Any] | str | os.PathLike[str] | None) -> QuantConfig:
    """A configuration from a dict or from a .json, .yaml or .yml file.

    Raises ``ArgumentError`` naming the path of the key that is unknown (with close matches) or has
    a wrong value, ``NotImplementedError`` for what the toolchain has and is not done here.
    """
    if given is None:
        return QuantConfig()
    raw = given if isinstance(given, Mapping) else read_mapping(given, ROOT)
    check_keys(ROOT, raw, LEVELS)
    where = f"{ROOT}: model_config"
    model = section(where, raw.get("model_config"), _MODEL)
    methods, kind = read_activation(model)
    skips = kind == SKIP
    weight = section(f"{where}: weight", model.get("weight"), ("bias_correction",))
    searches = {
        key: _search(f"{where}: {key}", model.get(key), methods, kind)
        for key in ("modelwise_search", "layerwise_search")
    }
    if all(searches.values()):
        raise ArgumentError(
            f"{where}: modelwise_search chooses one method for all tensors, layerwise_search one "
            "for each; give one of them"
        )
    return QuantConfig(
        methods=methods,
        skips=skips,
        loads=kind == LOAD,
        all_bits=_bits(f"{where}: all_node_type", model.get("all_node_type")),
        output_bits=_bits(f"{where}: model_output_type", model.get("model_output_type")),
        ops=_ops(raw.get("op_config")),
        nodes=_nodes(raw.get("node_config")),
        subgraphs=_subgraphs(raw.get("subgraph_config")),
        bias_correction=_bias_correction(
            f"{where}: weight: bias_correction", weight.get("bias_correction")
        ),
        **searches,
    )


def _bits(where: str, given: object) -> int | None:
    if given is None:
        return None
    if given == "float16":
        raise NotImplementedError(
            f"{where}: float16 is not done here: a calibrated model holds integer grids only, and "
            "nash-p and nash-h alone compute in float16. Take int16, or float32 to leave nodes to "
            "the CPU; the torch side has torch.float16"
        )
    return BITS[one_of(where, given, BITS)]


def _needed_bits(where: str, entry: Mapping[str, Any]) -> int:
    bits = _bits(f"{where}: qtype", entry.get("qtype"))
    if bits is None:
        raise ArgumentError(f"{where}: qtype is missing; it is one of {', '.join(BITS)}")
    return bits


def _ops(given: Any) -> dict[str, int]:
    entries = _entries(f"{ROOT}: op_config", given)
    return {
        name: _needed_bits(where, check_keys(where, entry, ("qtype",)))
        for name, where, entry in entries
    }


def _nodes(given: Any) -> dict[str, NodeSetting]:
    found = {}
    for name, where, entry in _entries(f"{ROOT}: node_config", given):
        inputs = [key for key in entry if _is_input(key)]
        check_keys(where, entry, ("qtype", "threshold", *(inputs or ["input0"])))
        bits: dict[int, int] = {}
        thresholds: dict[int, float] = {}
        for key in inputs:
            _input(f"{where}: {key}", int(key[5:]), entry[key], bits, thresholds)
        if entry.get("threshold") is not None:
            if thresholds:
                raise ArgumentError(f"{where}: give the threshold of the node or of its inputs")
            thresholds[-1] = _threshold(f"{where}: threshold", entry["threshold"])
        setting = NodeSetting(_bits(f"{where}: qtype", entry.get("qtype")), bits, thresholds)
        if setting == NodeSetting():
            raise ArgumentError(
                f"{where}: says nothing; expected qtype, threshold, or input0, input1, ..."
            )
        found[name] = setting
    return found


def _input(
    where: str, index: int, given: Any, bits: dict[int, int], thresholds: dict[int, float]
) -> None:
    """``"int16"`` or ``{"qtype": "int16", "threshold": 1.0}``, either key alone too."""
    if not isinstance(given, Mapping):
        bits[index] = _needed_bits(where, {"qtype": given})
        return
    check_keys(where, given, ("qtype", "threshold"))
    if given.get("threshold") is not None:
        thresholds[index] = _threshold(f"{where}: threshold", given["threshold"])
    if index not in thresholds or given.get("qtype") is not None:
        bits[index] = _needed_bits(where, given)


def _threshold(where: str, given: Any) -> float:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given) or given <= 0:
        raise ArgumentError(f"{where}: expected a positive number, got {given!r}")
    return float(given)


def _is_input(key: object) -> bool:
    return isinstance(key, str) and key.startswith("input") and key[5:].isdecimal()


def _subgraphs(given: Any) -> dict[str, Subgraph]:
    found = {}
    for name, where, entry in _entries(f"{ROOT}: subgraph_config", given):
        check_keys(where, entry, ("inputs", "outputs", "qtype"))
        ends = {}
        for key in ("inputs", "outputs"):
            listed = entry.get(key)
            names: Any = [listed] if isinstance(listed, str) else listed
            is_list = isinstance(names, (list, tuple)) and len(names) > 0
            if not is_list or not all(isinstance(item, str) for item in names):
                raise ArgumentError(
                    f"{where}: {key}: expected the names of nodes or tensors, got {listed!r}"
                )
            ends[key] = tuple(names)
        found[name] = Subgraph(ends["inputs"], ends["outputs"], _needed_bits(where, entry))
    return found


def _entries(where: str, given: Any) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Name, path of the key, and settings."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{where}: expected a dict of names but got {given!r}")
    for key, entry in given.items():
        if not isinstance(key, str):
            raise ArgumentError(f"{where}: names are texts, got {key!r}")
        if not isinstance(entry, Mapping):
            raise ArgumentError(
                f"{where}: {key}: expected a dict such as {{'qtype': 'int16'}} but got {entry!r}"
            )
    return [(key, f"{where}: {key}", entry) for key, entry in given.items()]


def _bias_correction(where: str, given: Any) -> BiasCorrection | None:
    if given is None or given is False:
        return None
    entry = check_keys(where, {} if given is True else given, ("num_sample", "metric"))
    count = entry.get("num_sample", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ArgumentError(f"{where}: num_sample must be a whole number from 1 on, got {count!r}")
    chosen = metric(entry.get("metric", DEFAULT_METRIC), f"{where}: metric").name
    return BiasCorrection(count, chosen)


def _search(where: str, given: Any, methods: tuple[Method, ...], kind: str) -> str | None:
    if given is None or given is False:
        return None
    entry = check_keys(where, {} if given is True else given, ("metric",))
    chosen = metric(entry.get("metric", DEFAULT_METRIC), f"{where}: metric").name
    if len(methods) == 1:
        name = kind or methods[0].label
        raise ArgumentError(
            f"{where}: there is nothing to choose from, calibration_type gives {name} alone; name "
            "several methods, or none for the automatic choice"
        )
    return chosen
