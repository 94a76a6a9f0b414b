"""``build_model``, ``check_model`` and ``insert_calibration`` (toolchain_facts 9.1)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from qtune.errors import ArgumentError
from qtune.hbir.onnx_import import source as files
from qtune.march import March
from qtune.onnx_debug.build import arguments
from qtune.onnx_debug.build.arguments import DEFAULT_MARCH, march_of, sizes_of
from qtune.onnx_debug.build.config import QuantConfig, read_config
from qtune.onnx_debug.build.dump import dump_data
from qtune.onnx_debug.build.files import Target, original
from qtune.onnx_debug.build.methods import Method
from qtune.onnx_debug.build.named import flag
from qtune.onnx_debug.build.node_info import node_infos, output_cosines, table
from qtune.onnx_debug.build.optimize import optimized_with_grids
from qtune.onnx_debug.build.pairs_model import pairs_model
from qtune.onnx_debug.build.ranges import refuse_nan
from qtune.onnx_debug.build.result import BuildResult
from qtune.onnx_debug.build.sample import random_data
from qtune.onnx_debug.build.steps import calibrated_for, converted, quant_info
from qtune.onnx_debug.build.take_out import float_form
from qtune.onnx_debug.calibrated import Port
from qtune.onnx_debug.data import CalibrationDataSet, Given
from qtune.onnx_debug.load import load_calibrated, port_of
from qtune.report.screen import show

_OPTIONS = ("output_nodes", "node_dict", "debug_methods", "optimization_methods")
_QUICK = QuantConfig(methods=(Method("max"),))
_log = logging.getLogger(__name__)


def build_model(
    onnx_model: files.Source | None = None,
    march: March | str = DEFAULT_MARCH,
    cali_data: Given | CalibrationDataSet | None = None,
    quant_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    input_dict: Mapping[str, Any] | None = None,
    name_prefix: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    *,
    return_builder: bool = False,
    check_mode: bool = False,
    save_model: bool = True,
    **options: Any,
) -> onnx.ModelProto | BuildResult:
    """Calibrate and quantize a float ONNX model; return the calibrated one, a ``ModelProto``.

    ``onnx_model`` (or ``onnx_file``): a path, bytes or a ``ModelProto``, which stays as it is.
    ``march``: a march, or ``nash`` (see :func:`march_of`). ``cali_data`` (or ``cali_dict``): a
    folder ``<dir>/<input>/<i>.npy``, lists or a dict of arrays. ``quant_config``: a dict or a file
    (docs/how-to/build-an-onnx-model.md). ``input_dict``: ``{input: {"input_shape": [...]}}``.
    ``name_prefix``: folder and first part of the files' names; default ``model`` in the working
    directory. ``verbose``: show what was chosen and what stays float. ``return_builder``: return
    all stages, a :class:`BuildResult`. ``check_mode``: random data and no files.
    ``save_model``: write the files; without it nothing is written.

    ``options``: ``output_nodes``, names of nodes or tensors at which the model ends; ``node_dict``,
    the ``node_config`` of ``quant_config``; ``debug_methods``, ``dump_calibration_data`` writes
    ``calibration_data/<input>/<i>.npy`` beside the files; ``optimization_methods``, of
    ``set_all_nodes_int16``, ``set_model_output_int8`` and ``set_model_output_int16``.

    Written are ``original_float_model.onnx``, ``optimized_float_model.onnx``,
    ``calibrated_model.onnx``, ``ptq_model.onnx``, ``quantized_model.bc``, ``node_info.csv`` and
    ``quant_info.json``, each behind ``<prefix>_``.

    Raises ``ArgumentError`` for arguments and data, ``OnnxImportError`` for what is no model of
    operators that have a form here, ``NotImplementedError`` for Caffe models.
    """
    flags = {
        "verbose": verbose,
        "return_builder": return_builder,
        "check_mode": check_mode,
        "save_model": save_model,
    }
    for name, value in flags.items():
        flag(f"build_model: {name}", value)
    given = arguments.renamed(options, _OPTIONS)
    source = arguments.one_given("onnx_model or onnx_file", onnx_model, given.get("onnx_file"))
    data = arguments.one_given("cali_data or cali_dict", cali_data, given.get("cali_dict"))
    if source is None:
        raise ArgumentError("build_model: give the model as onnx_model")
    raw = arguments.with_options(quant_config, given)
    config = _QUICK if raw is None and check_mode else read_config(raw)
    if data is None and not (check_mode or config.skips or config.loads):
        raise ArgumentError(
            "build_model: give the calibration data as cali_data; check_mode=True (or check_model) "
            "takes random data, for a look at what the march runs"
        )
    if data is not None and (check_mode or config.skips):
        raise ArgumentError(
            "build_model: check_mode and calibration_type skip take random data; leave cali_data "
            "out, or leave them out"
        )
    debug = arguments.debug_methods(given.get("debug_methods"))
    target = Target.of(name_prefix, "model") if save_model and not check_mode else None
    result, data = _built(source, march_of(march), data, config, input_dict, given)
    if target is not None:
        result = _written(result, target, data, dump=arguments.DUMP in debug)
    if verbose:
        show(result.summary())
    return result if return_builder else result.calibrated


def check_model(
    onnx_model: files.Source,
    march: March | str = DEFAULT_MARCH,
    input_dict: Mapping[str, Any] | None = None,
) -> BuildResult:
    """Build ``onnx_model`` on seeded random data and write nothing: what runs where, and why not.

    Shows the summary and returns all stages; the losses in it tell nothing about real data.
    """
    result, _ = _built(onnx_model, march_of(march), None, _QUICK, input_dict, {})
    show(result.summary())
    return result


def insert_calibration(
    model: files.Source,
    data: Given | CalibrationDataSet | None = None,
    march: March | str = DEFAULT_MARCH,
    *,
    quant_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    input_dict: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """Return ``model`` (which stays as it is) optimized and with HzCalibration nodes.

    ``data``: as for ``build_model``; ``None`` takes seeded random numbers. Without ``quant_config``
    the thresholds are the largest magnitudes. The same arguments give the same bytes.
    """
    config = _QUICK if quant_config is None else read_config(quant_config)
    proto, kept = optimized_with_grids(model, sizes_of(input_dict))
    items = _data(data, [port_of(info) for info in proto.graph.input])
    return calibrated_for(proto, config, march_of(march), original(model), kept, items).proto


def _data(given: Given | CalibrationDataSet | None, inputs: list[Port]) -> CalibrationDataSet:
    return random_data(inputs) if given is None else arguments.data_of(given, inputs)


def _built(
    model: files.Source,
    march: March,
    given: Given | CalibrationDataSet | None,
    config: QuantConfig,
    input_dict: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[BuildResult, CalibrationDataSet]:
    source = original(model)
    ends = options.get("output_nodes")
    start = model if not ends else arguments.cut_at(source, ends)
    proto, kept = optimized_with_grids(start, sizes_of(input_dict))
    refuse_nan(proto)
    data = _data(given, [port_of(info) for info in proto.graph.input])
    made = calibrated_for(proto, config, march, source, kept, data)
    qat, quantized = converted(made.proto, march)
    if made.fit.placement.places or kept.grids:
        described = load_calibrated(made.proto)
        infos = node_infos(described, qat, quantized, data)
        cosines = output_cosines(described, quantized, data)
    else:
        _log.warning("no node of the model runs on integers on %s", march)
        infos, cosines = [], {}
    info = quant_info(made, march, cosines)
    optimized = float_form(proto, kept)
    result = BuildResult(march, source, optimized, made.proto, qat, quantized, info, tuple(infos))
    return result, data


def _written(
    result: BuildResult, target: Target, data: CalibrationDataSet, *, dump: bool
) -> BuildResult:
    written: list[Path] = [
        target.model("original_float_model", result.original),
        target.model("optimized_float_model", result.optimized),
        target.model("calibrated_model", result.calibrated),
        target.model("ptq_model", pairs_model(result.calibrated)),
        target.module("quantized_model", result.quantized),
        target.text("node_info.csv", table(result.nodes)),
        target.text("quant_info.json", json.dumps(result.info, indent=1) + "\n"),
    ]
    if dump:
        written.append(dump_data(data, target.prefix.parent))
    return result.with_files(written)
