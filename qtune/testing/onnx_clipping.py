"""How much of what comes to each calibration node of an ONNX model its range clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from qtune.arith.quantize import channel_scale, in_range
from qtune.dtype import quant_dtype
from qtune.hbir.onnx_import.pairs import QUANTIZERS
from qtune.onnx_debug.calibrated import WEIGHT, CalibratedModel, CalibrationNode
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.runner import Runner
from qtune.onnx_debug.segments import Wiring
from qtune.report.progress import progress
from qtune.testing.clipping import Tally
from qtune.testing.onnx_ports import dtype_of

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Errors(Tally):
    """A tally with the sums of squared errors: of the values that are clipped, of all others."""

    by_clipping: float = 0.0
    by_rounding: float = 0.0


def onnx_clipping(
    model: CalibratedModel, items: Sequence[CalibrationNode], data: CalibrationDataSet
) -> dict[str, Errors]:
    """By name what comes to calibration nodes while the model computes in float on ``data``.

    Counted as by :func:`qtune.testing.clipping.clipping`. A weight whose codes the file holds has
    no other values, so none of them is clipped.
    """
    wiring, found = Wiring(model), {item.name: Errors() for item in items}
    by_tensor: dict[str, list[CalibrationNode]] = {}
    for item in items:
        if item.kind != WEIGHT:
            by_tensor.setdefault(item.source, []).append(item)
        elif not item.is_stored:
            _count(found[item.name], wiring.array(item.source), item, wiring)
    runner = Runner(model, data)
    for index in progress(range(len(data)), "run", unit="item"):
        for tensor, values, _ in runner.stream(index, (), list(by_tensor)):
            for item in by_tensor[tensor]:
                _count(found[item.name], values, item, wiring)
    return found


def reach_text(item: CalibrationNode, tally: Tally) -> str:
    """How far values go, beside how far the grid does (that of a QDQ pair may lie on one side)."""
    covered = f"covers {item.threshold:.4g}, these" if _is_symmetric(item) else "is too small: its"
    return f"{item.name} {covered} inputs reach {tally.reach:.4g}"


def is_clipped(errors: Errors) -> bool:
    """Whether a larger range helps more than a finer one: clipping costs more than rounding."""
    return errors.by_clipping > errors.by_rounding


def _is_symmetric(item: CalibrationNode) -> bool:
    return item.nodes[0].op_type not in QUANTIZERS


def _count(tally: Errors, values: Array, item: CalibrationNode, wiring: Wiring) -> None:
    moved = values + _shift(item, wiring, values.ndim)
    dtype = quant_dtype(dtype_of(item))
    inside = in_range(moved, item.scales, dtype, item.axis)
    tally.add(values.shape, inside.size - int(inside.sum()), inside.size)
    scale = channel_scale(item.scales, moved.astype(np.float64), item.axis)
    codes = np.clip(np.floor(moved / scale + 0.5), dtype.qmin, dtype.qmax)
    squares = np.where(np.isfinite(values), (codes * scale - moved) ** 2, 0.0)
    tally.by_rounding += float(squares[inside].sum())
    tally.by_clipping += float(squares[~inside].sum())
    finite = np.abs(values[np.isfinite(values)])
    if finite.size:
        tally.reach = max(tally.reach, float(finite.max()))


def _shift(item: CalibrationNode, wiring: Wiring, rank: int) -> Array:
    """What real values are moved by so that codes are those around 0 (0 to 255: -128 to 127)."""
    quantize = item.nodes[0]
    if quantize.op_type != "QuantizeLinear":
        return np.zeros((), np.float32)
    form = [-1 if axis == item.axis else 1 for axis in range(rank)] if item.axis >= 0 else []
    zero, is_signed = np.zeros((), np.float32), _is_signed(quantize)
    if len(quantize.input) > 2 and quantize.input[2]:
        given = wiring.array(quantize.input[2])
        is_signed = given.dtype.kind == "i"
        zero = given.astype(np.float32)
    lowest = 0.0 if is_signed else float(2 ** (item.bits - 1))
    steps = (zero - np.float32(lowest)) * np.ones(item.scales.shape, np.float32)
    return np.asarray((steps * item.scales).reshape(form))


def _is_signed(quantize: onnx.NodeProto) -> bool:
    """Of a node without a zero point: uint8 unless it says otherwise."""
    stated = next((a.i for a in quantize.attribute if a.name == "output_dtype"), 0)
    return stated in (onnx.TensorProto.INT4, onnx.TensorProto.INT8, onnx.TensorProto.INT16)
