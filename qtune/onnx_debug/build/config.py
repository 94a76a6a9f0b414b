"""``quant_config``: what the user sets at the levels model, operator type, node and subgraph.

Keys and meaning: toolchain_facts 9.3. Where the toolchain leaves something open: a node's own entry
wins over the subgraph it lies in, that over its operator type, that over ``all_node_type``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.build.methods import METHODS, Method
from qtune.onnx_debug.build.named import check_keys, one_of
from qtune.onnx_debug.metrics import DEFAULT as DEFAULT_METRIC
from qtune.onnx_debug.metrics import metric

SKIP = "skip"
BITS = {"int8": 8, "int16": 16, "float32": 32}
_LEVELS = ("model_config", "op_config", "node_config", "subgraph_config")
_MODEL = (
    "all_node_type",
    "model_output_type",
    "activation",
    "weight",
    "modelwise_search",
    "layerwise_search",
)
_ACTIVATION = (
    "calibration_type",
    "num_bin",
    "max_num_bin",
    "max_percentile",
    "per_channel",
    "asymmetric",
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
    bits: int | None


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """``bits`` of all inputs of a node, and of single ones by index."""

    bits: int | None = None
    inputs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """A checked configuration. ``methods``: empty for the automatic choice. ``skips``: random data
    serve (``calibration_type: skip``). ``None``: not asked."""

    methods: tuple[Method, ...] = ()
    skips: bool = False
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

    Raises ``ArgumentError`` naming what is unknown (with close matches) or has a wrong value.
    """
    if given is None:
        return QuantConfig()
    raw = given if isinstance(given, Mapping) else read_mapping(given, "quant_config")
    check_keys("quant_config", raw, _LEVELS)
    model = check_keys("model_config", raw.get("model_config") or {}, _MODEL)
    activation = check_keys("activation", model.get("activation") or {}, _ACTIVATION)
    weight = check_keys("weight", model.get("weight") or {}, ("bias_correction",))
    return QuantConfig(
        methods=_methods(activation),
        skips=activation.get("calibration_type") == SKIP,
        all_bits=_bits("all_node_type", model.get("all_node_type")),
        output_bits=_bits("model_output_type", model.get("model_output_type")),
        ops=_ops(raw.get("op_config") or {}),
        nodes=_nodes(raw.get("node_config") or {}),
        subgraphs=_subgraphs(raw.get("subgraph_config") or {}),
        bias_correction=_bias_correction(weight.get("bias_correction")),
        modelwise_search=_search("modelwise_search", model.get("modelwise_search")),
        layerwise_search=_search("layerwise_search", model.get("layerwise_search")),
    )


def read_mapping(path: str | os.PathLike[str], what: str) -> Mapping[str, Any]:
    """The mapping in a .json, .yaml or .yml file."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(
            f"{what}: expected a dict or the path of a JSON or YAML file; got {path!r}"
        )
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{what}: {file} can't be read: {error}") from None
    found = _parsed(file, text, what)
    if not isinstance(found, Mapping):
        raise ArgumentError(f"{what}: {file} holds no mapping of keys to values")
    return found


def _parsed(file: Path, text: str, what: str) -> Any:
    if file.suffix.lower() == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ArgumentError(f"{what}: {file} is no JSON: {error}") from None
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ArgumentError(
            f"{what}: reading {file} needs the package PyYAML: pip install pyyaml, or use JSON"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ArgumentError(f"{what}: {file} is no YAML: {error}") from None


def _bits(where: str, given: object) -> int | None:
    return None if given is None else BITS[one_of(where, given, BITS)]


def _methods(activation: Mapping[str, Any]) -> tuple[Method, ...]:
    for key in ("per_channel", "asymmetric"):
        if activation.get(key):
            raise ArgumentError(
                f"activation: {key} is asked for, but the BPU takes one symmetric scale per "
                "tensor of activations; leave it out"
            )
    given = activation.get("calibration_type")
    if given == SKIP:
        return (Method("max"),)
    if given is not None and not isinstance(given, (str, list, tuple)):
        raise ArgumentError(
            f"activation: calibration_type: expected a name or a list of names; got {given!r}"
        )
    names = [given] if isinstance(given, str) else list(given or ())
    options = {key: activation[key] for key in activation if key in _ACTIVATION[1:4]}
    if not names and options:
        names = ["max"] if set(options) == {"max_percentile"} else ["kl"]
    for name in names:
        one_of("activation: calibration_type", name, METHODS)
    return tuple(m for name in names for m in Method.variants(name, options))


def _ops(given: Any) -> dict[str, int]:
    found = {}
    for op_type, entry in _entries("op_config", given):
        where = f"op_config: {op_type}"
        bits = _bits(f"{where}: qtype", check_keys(where, entry, ("qtype",)).get("qtype"))
        if bits is not None:
            found[op_type] = bits
    return found


def _nodes(given: Any) -> dict[str, NodeSetting]:
    found = {}
    for name, entry in _entries("node_config", given):
        where = f"node_config: {name}"
        inputs = [key for key in entry if _is_input(key)]
        check_keys(where, entry, ("qtype", *inputs) if inputs else ("qtype", "input0"))
        found[name] = NodeSetting(
            _bits(f"{where}: qtype", entry.get("qtype")),
            {int(key[5:]): BITS[one_of(f"{where}: {key}", entry[key], BITS)] for key in inputs},
        )
    return found


def _is_input(key: object) -> bool:
    return isinstance(key, str) and key.startswith("input") and key[5:].isdigit()


def _subgraphs(given: Any) -> dict[str, Subgraph]:
    found = {}
    for name, entry in _entries("subgraph_config", given):
        where = f"subgraph_config: {name}"
        check_keys(where, entry, ("inputs", "outputs", "qtype"))
        ends = {}
        for key in ("inputs", "outputs"):
            listed = entry.get(key)
            names = [listed] if isinstance(listed, str) else listed
            if not isinstance(names, Sequence) or not names:
                raise ArgumentError(f"{where}: {key} must name at least one node or tensor")
            ends[key] = tuple(map(str, names))
        bits = _bits(f"{where}: qtype", entry.get("qtype"))
        found[name] = Subgraph(ends["inputs"], ends["outputs"], bits)
    return found


def _entries(where: str, given: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{where}: expected a dict of names but got {given!r}")
    for key, entry in given.items():
        if not isinstance(entry, Mapping):
            raise ArgumentError(
                f"{where}: {key}: expected a dict such as {{'qtype': 'int16'}} but got {entry!r}"
            )
    return [(str(key), entry) for key, entry in given.items()]


def _bias_correction(given: Any) -> BiasCorrection | None:
    if given is None or given is False:
        return None
    where = "weight: bias_correction"
    entry = check_keys(where, {} if given is True else given, ("num_sample", "metric"))
    count = entry.get("num_sample", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ArgumentError(f"{where}: num_sample must be a whole number from 1 on, got {count!r}")
    chosen = metric(entry.get("metric", DEFAULT_METRIC), f"{where}: metric").name
    return BiasCorrection(count, chosen)


def _search(where: str, given: Any) -> str | None:
    if given is None or given is False:
        return None
    entry = check_keys(where, {} if given is True else given, ("metric",))
    return metric(entry.get("metric", DEFAULT_METRIC), f"{where}: metric").name
