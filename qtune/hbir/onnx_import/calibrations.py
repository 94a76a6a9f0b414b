"""HzCalibration nodes of an imported graph: their grids, and where they take effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.attributes import node_attributes
from qtune.hbir.hz_calibration import Calibration
from qtune.hbir.onnx_import.form import OnnxWeight
from qtune.ops.registry import kernel_owners
from qtune.ops.spec import FuseRole, Rule

Array = np.ndarray[Any, Any]

BIAS = 2
"""Which input of a convolution or Gemm is its bias."""

_MOVING = ("movement", "pool")
"""Families whose ``INPUT_SCALE`` operators hand values on: rounding before them is after them."""

_REWRITTEN = (
    "DepthToSpace",
    "Flatten",
    "GatherND",
    "GlobalMaxPool",
    "Identity",
    "SpaceToDepth",
)
"""Operators that hand values on and have another form in HBIR."""

WEIGHT_MOVERS = ("Identity", "Transpose", "Reshape", "Unsqueeze", "Squeeze")
"""Operators between a quantized constant and its reader that :func:`moved_weight` takes."""


def is_calibration(node: ir.Node) -> bool:
    """Whether ``node`` is a calibration node."""
    return node.op_type == hz_calibration.OP_TYPE


def calibration(node: ir.Node) -> Calibration:
    """What a calibration node of the graph holds; raises ``OnnxImportError`` naming it."""
    return hz_calibration.calibration_of(ir.to_proto(node))


def weight_of(node: ir.Node, data: Array) -> OnnxWeight:
    """The constant ``data`` on the grid of a calibration node."""
    held = calibration(node)
    hz_calibration.check_axis(node.name or "", held, data.shape)
    axis = held.axis
    limits = (held.qmin, held.qmax)
    return OnnxWeight(data, held.scales, axis, limits, half_up=True)


def is_plain_constant(node: ir.Node, index: int, weight: OnnxWeight) -> bool:
    """Whether input ``index`` has no grid of its own on the BPU: a bias, and a single number.

    Its values are those on the grid. The BPU rounds a bias at the accumulator's scale and holds a
    number in the multiplier.
    """
    owner = kernel_owners().get((node.domain, node.op_type))
    if owner is not None and owner.fuse is FuseRole.GEMM:
        return index == BIAS
    return weight.data.size == 1 and node.op_type != "PRelu"  # a slope has codes, even a single one


def hands_on(node: ir.Node) -> bool:
    """Whether the values of ``node`` are values of its first input, unchanged."""
    if node.domain or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type in _REWRITTEN:
        return True
    if node.op_type == "Resize":
        return bool(node_attributes(node).get("mode", "nearest") == "nearest")
    owner = kernel_owners().get(("", node.op_type))
    return owner is not None and owner.rule is Rule.INPUT_SCALE and owner.family in _MOVING


def early_grids(graph: ir.Graph) -> dict[ir.Node, ir.Node]:
    """Operators that hand on floats which are calibrated behind them -> that calibration node.

    A tensor that only moves need not be calibrated before it moves. The grid is brought forward to
    where the first of these operators takes it, so that all of them move codes.
    """
    found: dict[ir.Node, ir.Node] = {}
    for node in graph:
        if is_calibration(node) and node.inputs[0] is not None:
            first = _first_mover(node.inputs[0])
            if first is not None:
                found.setdefault(first, node)
    return found


def _first_mover(value: ir.Value) -> ir.Node | None:
    """The operator in which a chain of moves that gives ``value`` begins, if it takes floats."""
    first = None
    maker = value.producer()
    while maker is not None and hands_on(maker):
        first = maker
        source = maker.inputs[0]
        maker = None if source is None else source.producer()
    if first is None or first.inputs[0] is None:
        return None
    source = first.inputs[0]
    is_constant = source.const_value is not None
    known = maker is not None and is_calibration(maker)
    return None if is_constant or known else first


def moved_weight(node: ir.Node, weight: OnnxWeight, constants: list[Array | None]) -> OnnxWeight:
    """A weight on its grid behind an operator that moves its elements; refuses what blurs it."""
    attrs = node_attributes(node)
    if node.op_type == "Identity":
        return weight
    if node.op_type == "Transpose":
        rank = weight.data.ndim
        perm = tuple(attrs.get("perm") or reversed(range(rank)))
        axis = weight.axis if weight.axis < 0 else perm.index(weight.axis)
        return weight.with_data(weight.data.transpose(perm), axis)
    target = constants[1] if len(constants) > 1 else None
    if node.op_type == "Reshape" and target is not None and weight.axis < 0:
        sizes = [
            weight.data.shape[i] if size == 0 and not attrs.get("allowzero", 0) else int(size)
            for i, size in enumerate(target.tolist())
        ]
        return weight.with_data(weight.data.reshape(sizes), -1)
    if node.op_type in ("Unsqueeze", "Squeeze"):
        return _with_axes(node, weight, target)
    raise OnnxImportError(f"{node.name}: {node.op_type} of a quantized weight has no form here")


def _with_axes(node: ir.Node, weight: OnnxWeight, axes: Array | None) -> OnnxWeight:
    """The weight behind an Unsqueeze or Squeeze with these axes (all of size 1 without)."""
    shape, given = weight.data.shape, None if axes is None else axes.reshape(-1).tolist()
    if node.op_type == "Unsqueeze":
        rank = len(shape) + len(given or ())
        added = {axis % rank for axis in given or ()}
        kept = [axis for axis in range(rank) if axis not in added]
        data = np.expand_dims(weight.data, tuple(sorted(added)))
    else:
        gone = {i for i, size in enumerate(shape) if size == 1} if given is None else set()
        gone |= {axis % len(shape) for axis in given or ()}
        kept = [
            -1 if axis in gone else axis - sum(g < axis for g in gone) for axis in range(len(shape))
        ]
        data = weight.data.squeeze(tuple(gone))
    return weight.with_data(data, weight.axis if weight.axis < 0 else kept[weight.axis])


def moves_weight(node: ir.Node) -> bool:
    """Whether :func:`moved_weight` may take the operator."""
    return not node.domain and node.op_type in WEIGHT_MOVERS
