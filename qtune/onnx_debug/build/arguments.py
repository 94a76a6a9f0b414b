"""The arguments of ``build_model`` as checked values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from qtune.errors import ArgumentError
from qtune.march import March, as_march
from qtune.onnx_debug.build.config import ROOT
from qtune.onnx_debug.build.config_file import read_mapping
from qtune.onnx_debug.build.named import check_keys, section, unknown
from qtune.onnx_debug.calibrated import Port
from qtune.onnx_debug.data import CalibrationDataSet, Given

DEFAULT_MARCH = "nash"
DUMP = "dump_calibration_data"
DEBUG_METHODS = (DUMP,)
_OPTIMIZED = {
    "set_all_nodes_int16": ("all_node_type", "int16"),
    "set_model_output_int8": ("model_output_type", "int8"),
    "set_model_output_int16": ("model_output_type", "int16"),
}
OPTIMIZATIONS = tuple(_OPTIMIZED)
"""``optimization_methods`` of the toolchain that have a counterpart here."""

_CAFFE = ("prototxt_file", "caffemodel_file")
_OTHER_NAMES = {"onnx_file": "onnx_model", "cali_dict": "cali_data"}


def march_of(name: March | str) -> March:
    """The march; ``nash``, the toolchain's default, names a series. Here it means ``nash-e``:
    what runs there runs on every other march of the series, which has float16 besides."""
    return March.NASH_E if str(name).lower() == DEFAULT_MARCH else as_march(name)


def sizes_of(input_dict: Any) -> dict[str, list[int]]:
    """``{name: {"input_shape": [...]}}`` as sizes by input; a bare list is taken too."""
    found: dict[str, list[int]] = {}
    if input_dict is None:
        return found
    if not isinstance(input_dict, Mapping):
        raise ArgumentError(
            f"input_dict: expected {{input: {{'input_shape': [...]}}}} but got {input_dict!r}"
        )
    for name, entry in input_dict.items():
        where = f"input_dict: {name}"
        if isinstance(entry, Mapping):
            entry = check_keys(where, entry, ("input_shape",)).get("input_shape")
        is_list = isinstance(entry, (list, tuple))
        if not is_list or not all(_is_size(size) for size in entry):
            raise ArgumentError(f"{where}: input_shape must be a list of sizes, got {entry!r}")
        found[str(name)] = [int(size) for size in entry]
    return found


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 0


def renamed(given: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments under our names; refuses unknown ones, and those that have no place."""
    found = {}
    for key, value in given.items():
        if key in _CAFFE:
            if value is not None:
                raise NotImplementedError(
                    f"build_model: {key}: Caffe models are not read; export the model to ONNX"
                )
            continue
        if key not in known and key not in _OTHER_NAMES:
            raise unknown("build_model", "option", key, [*known, *_OTHER_NAMES, *_CAFFE])
        found[key] = value
    return found


def one_given(where: str, first: Any, second: Any) -> Any:
    """The one of two spellings of an argument that was given."""
    if first is not None and second is not None:
        raise ArgumentError(f"build_model: give {where}, not both")
    return second if first is None else first


def data_of(given: Given | CalibrationDataSet, inputs: Sequence[Port]) -> CalibrationDataSet:
    """Calibration data for a model with ``inputs``; the first item is checked at once."""
    data = CalibrationDataSet(given, inputs)
    data[0]
    return data


def cut_at(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A copy of ``proto`` that ends at the nodes or tensors ``names`` (``output_nodes``)."""
    makers = {node.name: list(node.output) for node in proto.graph.node if node.name}
    made = {name for node in proto.graph.node for name in node.output}
    wanted: list[str] = []
    for name in _listed("output_nodes", names):
        if name in made:
            wanted.append(name)
        elif name in makers:
            wanted += makers[name]
        else:
            raise unknown("output_nodes", "node or tensor", name, {*makers, *made})
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    known = {info.name: info for info in (*proto.graph.output, *proto.graph.value_info)}
    del copy.graph.output[:]
    for name in dict.fromkeys(wanted):
        empty = onnx.helper.make_empty_tensor_value_info(name)
        copy.graph.output.append(known.get(name, empty))
    inferred: onnx.ModelProto = onnx.shape_inference.infer_shapes(copy)
    return inferred


def debug_methods(given: Any) -> tuple[str, ...]:
    """``debug_methods``, one or several, checked."""
    return _names("debug_methods", given, DEBUG_METHODS)


def _listed(where: str, given: Any) -> list[Any]:
    if given is not None and not isinstance(given, (str, list, tuple)):
        raise ArgumentError(f"{where}: expected a name or a list of names; got {given!r}")
    return [given] if isinstance(given, str) else list(given or ())


def _names(where: str, given: Any, known: Sequence[str]) -> tuple[str, ...]:
    listed = _listed(where, given)
    names = [name.strip() for item in listed for name in str(item).split(";") if name.strip()]
    for name in names:
        if name not in known:
            raise unknown(where, "method", name, known)
    return tuple(names)


def with_options(
    config: Mapping[str, Any] | str | os.PathLike[str] | None, given: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """``quant_config`` joined with ``node_dict`` and ``optimization_methods``.

    A key that both set is refused.
    """
    added = dict(
        _OPTIMIZED[name]
        for name in _names("optimization_methods", given.get("optimization_methods"), OPTIMIZATIONS)
    )
    nodes = given.get("node_dict")
    if nodes is not None and not isinstance(nodes, Mapping):
        raise ArgumentError(f"node_dict: expected a dict of node -> settings; got {nodes!r}")
    raw = None if config is None else _mapping(config)
    if not added and not nodes:
        return raw
    joined = dict(raw or {})
    for level, entries in (("model_config", added), ("node_config", nodes or {})):
        before = section(f"{ROOT}: {level}", joined.get(level))
        twice = sorted(set(before) & set(entries))
        if twice:
            raise ArgumentError(
                f"{ROOT}: {level}: {', '.join(map(str, twice))} is set there and by node_dict or "
                "optimization_methods; set it once"
            )
        if entries:
            joined[level] = {**before, **entries}
    return joined


def _mapping(config: Mapping[str, Any] | str | os.PathLike[str]) -> Mapping[str, Any]:
    return config if isinstance(config, Mapping) else read_mapping(config, ROOT)
