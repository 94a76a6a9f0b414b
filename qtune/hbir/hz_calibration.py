"""``HzCalibration``: the calibration node of the toolchain's ONNX models (onnx_debugger).

``y = clamp(floor(x / scale + 0.5), -2**(bits-1), 2**(bits-1) - 1) * scale`` in float32, one scale
for the tensor or one per channel along ``axis``; NaN passes (numerics.md section 1). The node
carries this as an ONNX function body, so that any runtime of standard ONNX runs a calibrated model
as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, parser

from qtune.dtype import quant_dtype
from qtune.errors import OnnxImportError
from qtune.hbir.domain import DOMAIN, DOMAIN_VERSION

Array = np.ndarray[Any, Any]

OP_TYPE = "HzCalibration"
SUFFIX = "_HzCalibration"
BITS = (4, 8, 16)

_BODY = """<domain: "qtune", opset_import: ["" : 21]>
HzCalibration <axis, bits, scales, thresholds> (x) => (y)
{
  zero = Constant<value_int: int = 0>()
  one = Constant<value_int: int = 1>()
  rest = Constant<value_int: int = -1>()
  half = Constant<value_float: float = 0.5>()
  one_f = Constant<value_float: float = 1.0>()
  two_f = Constant<value_float: float = 2.0>()
  channel = Constant<value_int: int = @axis>()
  bits_i = Constant<value_int: int = @bits>()
  flat = Constant<value_floats: floats = @scales>()
  sizes = Shape(x)
  ranks = Shape(sizes)
  rank = Squeeze(ranks)
  dims = Range(zero, rank, one)
  is_channel = Equal(dims, channel)
  form = Where(is_channel, rest, one)
  scale = Reshape(flat, form)
  bits_f = Cast<to = 1>(bits_i)
  exponent = Sub(bits_f, one_f)
  power = Pow(two_f, exponent)
  low = Neg(power)
  high = Sub(power, one_f)
  ratio = Div(x, scale)
  shifted = Add(ratio, half)
  rounded = Floor(shifted)
  codes = Clip(rounded, low, high)
  values = Mul(codes, scale)
  lost = IsNaN(x)
  y = Where(lost, x, values)
}"""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What one calibration node holds.

    ``scales``, ``thresholds``: float32 ``[1]``, or one for each channel along ``axis`` (-1 for one
    scale). ``bits``: 4, 8 or 16.
    """

    scales: Array
    thresholds: Array
    bits: int = 8
    axis: int = -1

    @property
    def qmin(self) -> int:
        """The smallest code."""
        return quant_dtype(f"qint{self.bits}").qmin

    @property
    def qmax(self) -> int:
        """The largest code."""
        return quant_dtype(f"qint{self.bits}").qmax

    @property
    def threshold(self) -> float:
        """The largest threshold, which the tables show."""
        return float(np.max(self.thresholds))

    def along(self, rank: int) -> Array:
        """The scales so that they broadcast on a tensor of this rank."""
        if self.axis < 0:
            return self.scales.reshape(())
        return self.scales.reshape([-1 if i == self.axis else 1 for i in range(rank)])


@cache
def function() -> onnx.FunctionProto:
    """The body of ``qtune::HzCalibration``."""
    made: onnx.FunctionProto = parser.parse_function(_BODY)
    return made


def make_node(name: str, source: str, output: str, calibration: Calibration) -> onnx.NodeProto:
    """The node ``name`` that brings the tensor ``source`` to the grid of ``calibration``."""
    check(name, calibration)
    return helper.make_node(
        OP_TYPE,
        [source],
        [output],
        name=name,
        domain=DOMAIN,
        axis=calibration.axis,
        bits=calibration.bits,
        scales=[float(s) for s in calibration.scales],
        thresholds=[float(t) for t in calibration.thresholds],
    )


def is_calibration(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is a calibration node, in whatever domain it came."""
    return bool(node.op_type == OP_TYPE)


def calibration_of(node: onnx.NodeProto) -> Calibration:
    """What a calibration node holds.

    A node without ``scales`` has thresholds that somebody fixed: ``threshold / 2**(bits-1)`` is
    its scale. Raises ``OnnxImportError`` naming the node for thresholds or scales that are 0,
    negative, NaN or infinite, and for other forms.
    """
    attrs = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    try:
        thresholds = _numbers(attrs.get("thresholds", attrs.get("threshold", ())))
        scales = _numbers(attrs.get("scales", attrs.get("scale", ())))
        bits, axis = int(attrs.get("bits", 8)), int(attrs.get("axis", -1))
    except (TypeError, ValueError):
        raise OnnxImportError(
            f"{node.name}: {attrs} are no attributes of a calibration node; bits and axis are "
            "integers, scales and thresholds numbers or lists of them"
        ) from None
    _check_bits(node.name, bits)
    if not scales.size and not thresholds.size:
        raise OnnxImportError(
            f"{node.name}: a calibration node needs scales or thresholds, it has the attributes "
            f"{', '.join(sorted(attrs)) or 'none'}"
        )
    if not scales.size:
        scales = (thresholds / np.float32(1 << (bits - 1))).astype(np.float32)
    if not thresholds.size:
        thresholds = (scales * np.float32(1 << (bits - 1))).astype(np.float32)
    found = Calibration(scales, thresholds, bits, axis if scales.size > 1 else -1)
    check(node.name, found)
    return found


def _numbers(value: Any) -> Array:
    flat: Sequence[float] = value if isinstance(value, Sequence) else (value,)
    return np.asarray(list(flat), dtype=np.float32)


def check(name: str, calibration: Calibration) -> None:
    """Raise ``OnnxImportError`` naming ``name`` where a calibration makes no sense."""
    for what, values in (("threshold", calibration.thresholds), ("scale", calibration.scales)):
        for index, value in enumerate(values.reshape(-1).tolist()):
            if not (math.isfinite(value) and value > 0):
                where = f" of channel {index}" if values.size > 1 else ""
                raise OnnxImportError(
                    f"{name}: its {what}{where} is {value:g}; it must be a positive number. "
                    "Calibrate with data in which the tensor is neither constant 0 nor NaN"
                )
    _check_bits(name, calibration.bits)
    if calibration.scales.size != calibration.thresholds.size:
        raise OnnxImportError(
            f"{name}: {calibration.scales.size} scales, {calibration.thresholds.size} thresholds; "
            "there must be one of each per channel"
        )
    if calibration.scales.size > 1 and calibration.axis < 0:
        raise OnnxImportError(f"{name}: {calibration.scales.size} scales need an axis from 0 on")


def _check_bits(name: str, bits: int) -> None:
    if bits not in BITS:
        raise OnnxImportError(f"{name}: bits is {bits}; expected 4, 8 or 16")


def check_axis(name: str, calibration: Calibration, shape: Sequence[int]) -> None:
    """Raise ``OnnxImportError`` naming ``name`` where a tensor of ``shape`` takes other scales."""
    axis, count = calibration.axis, calibration.scales.size
    if axis >= 0 and (axis >= len(shape) or shape[axis] != count):
        raise OnnxImportError(
            f"{name}: {count} scales along axis {axis} don't fit a tensor of shape {list(shape)}"
        )


def own(proto: onnx.ModelProto) -> None:
    """Give calibration nodes our domain; bodies that the file brings for them are dropped."""
    nodes = [node for node in proto.graph.node if is_calibration(node)]
    for node in nodes:
        node.domain = DOMAIN
    others = [item for item in proto.functions if item.name != OP_TYPE]
    if len(others) < len(proto.functions):
        copies = [onnx.FunctionProto.FromString(item.SerializeToString()) for item in others]
        del proto.functions[:]
        proto.functions.extend(copies)
    if nodes and all(entry.domain != DOMAIN for entry in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))


def declare(proto: onnx.ModelProto) -> None:
    """Make ``proto`` (opset 21) complete for its calibration nodes: their domain and body."""
    own(proto)
    if any(is_calibration(node) for node in proto.graph.node):
        proto.functions.append(function())


def hide(proto: onnx.ModelProto) -> None:
    """Put Identity in place of calibration nodes: for tools that don't look into functions.

    onnx infers no shape through the body, since it computes the sizes of the scales.
    """
    for node in proto.graph.node:
        if is_calibration(node):
            node.op_type, node.domain = "Identity", ""
            del node.attribute[:]


def apply(
    calibration: Calibration, x: Array, scale: Array | None = None, out: Array | None = None
) -> Array:
    """What the node makes of a float32 array, in NumPy.

    ``scale``: the scales as they broadcast on an ``x`` that has its elements in another order.
    ``out``: an array like ``x`` that takes the result.
    """
    scale = calibration.along(x.ndim) if scale is None else scale
    low, high = np.float32(calibration.qmin), np.float32(calibration.qmax)
    y = np.empty(x.shape, np.float32) if out is None else out
    with np.errstate(invalid="ignore", over="ignore"):  # one buffer: large weights pass here
        np.divide(x, scale, out=y)
        y += np.float32(0.5)
        np.floor(y, out=y)
        np.clip(y, low, high, out=y)
        y *= scale
    return y
