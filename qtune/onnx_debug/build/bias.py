"""Bias correction: what quantization shifts in the mean of a GEMM's output is taken off its bias.

Each GEMM runs on the float values before it with only its own calibration nodes on, so that the
corrections do not depend on each other. ``correction[c] = mean(calibrated - float)`` over the items
and all positions of channel ``c``; it is kept where it betters the metric of the GEMM's output.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtune.errors import ArgumentError
from qtune.hbir.onnx_import.names import free_name
from qtune.onnx_debug.build.config import BiasCorrection
from qtune.onnx_debug.build.loss import badness, mean_score
from qtune.onnx_debug.calibrated import WEIGHT, CalibratedModel, OrdinaryNode
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.load import load_calibrated
from qtune.onnx_debug.runner import Runner
from qtune.report.progress import progress

Array = np.ndarray[Any, Any]

_CHANNELS = {"Conv": 1, "ConvTranspose": 1, "Gemm": -1}
"""GEMMs that take a bias -> the axis of the channels in their output."""

_log = logging.getLogger(__name__)


def corrected(
    calibrated: onnx.ModelProto,
    data: CalibrationDataSet,
    wanted: BiasCorrection,
    kept: Collection[str] = (),
) -> tuple[onnx.ModelProto, list[str]]:
    """The calibrated model with corrected biases, and the names of the nodes that got one.

    ``kept``: tensors on grids of the file; GEMMs whose weight is one of them stay as they are.
    """
    if wanted.num_sample > len(data):
        raise ArgumentError(
            f"weight: bias_correction: num_sample is {wanted.num_sample}, the calibration data "
            f"has {len(data)} item(s)"
        )
    model = load_calibrated(calibrated)
    runner = Runner(model, data)
    copy = onnx.ModelProto()
    copy.CopyFrom(calibrated)
    done = []
    for node in progress(_gemms(model, kept), "correcting biases", unit="node"):
        shift = _shift(runner, node, wanted)
        if shift is not None and _add(copy, node.name, -shift):
            done.append(node.name)
    _log.info("bias correction: %d node(s) got a new bias", len(done))
    return copy, done


def _gemms(model: CalibratedModel, kept: Collection[str]) -> list[OrdinaryNode]:
    """GEMMs with a calibrated weight and a bias that is constant, or none."""
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    return [
        node
        for node in model.nodes
        if node.op_type in _CHANNELS
        and any(
            model.calibrations[name].kind == WEIGHT and model.calibrations[name].output not in kept
            for name in node.calibrations
        )
        and (len(node.inputs) < 3 or not node.inputs[2] or node.inputs[2] in constants)
    ]


def _shift(runner: Runner, node: OrdinaryNode, wanted: BiasCorrection) -> Array | None:
    output = node.outputs[0]
    pairs = [
        (
            runner.values(index, (), [output])[output],
            runner.values(index, node.calibrations, [output])[output],
        )
        for index in range(wanted.num_sample)
    ]
    axis = _CHANNELS[node.op_type]
    rest = tuple(i for i in range(pairs[0][0].ndim) if i != axis % pairs[0][0].ndim)
    errors = [(got.astype(np.float64) - given).mean(axis=rest) for given, got in pairs]
    shift = np.mean(errors, axis=0).astype(np.float32)
    along = shift.reshape([-1 if i not in rest else 1 for i in range(pairs[0][0].ndim)])
    before = mean_score(wanted.metric, pairs)
    after = mean_score(wanted.metric, ((given, got - along) for given, got in pairs))
    return shift if badness(wanted.metric, after) < badness(wanted.metric, before) else None


def _add(proto: onnx.ModelProto, name: str, change: Array) -> bool:
    """Add ``change`` to the bias of a node, which gets a constant of its own."""
    node = next(item for item in proto.graph.node if item.name == name)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    old = node.input[2] if len(node.input) > 2 else ""
    given = numpy_helper.to_array(constants[old]) if old else np.zeros_like(change)
    new = free_name(f"{name}.corrected_bias", {*constants, *_made(proto)})
    array = np.broadcast_to(given, change.shape) if given.size <= change.size else None
    if array is None:  # a Gemm may add a whole matrix; that is no bias
        return False
    proto.graph.initializer.append(
        numpy_helper.from_array((array + change).astype(np.float32), new)
    )
    if len(node.input) > 2:
        node.input[2] = new
    else:
        node.input.append(new)
    if old and all(old not in item.input for item in proto.graph.node):
        proto.graph.initializer.remove(constants[old])
    return True


def _made(proto: onnx.ModelProto) -> set[str]:
    return {name for node in proto.graph.node for name in node.output}
