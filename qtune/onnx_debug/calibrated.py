"""A calibrated ONNX model as the debugger sees it: ordinary nodes and calibration nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]

WEIGHT, ACTIVATION = "weight", "activation"


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationNode:
    """A place where a tensor is brought to a grid.

    ``name``: unique, ``<tensor>_HzCalibration``. ``kind``: ``weight`` (it reads a constant) or
    ``activation``. ``source``: the tensor it reads; ``output``: the one it gives. ``users``: the
    ordinary nodes that read the latter, in graph order. ``nodes``: what computes it, one
    HzCalibration node, or a QuantizeLinear and a DequantizeLinear of an imported file.
    ``scales``, ``thresholds``: float32 ``[1]`` or ``[channels]`` along ``axis`` (-1 for one scale).
    ``is_stored``: the file holds the codes only (DequantizeLinear of a constant), so there is no
    other value to compare with and it can't be switched off.
    """

    name: str
    kind: str
    source: str
    output: str
    users: tuple[str, ...]
    nodes: tuple[onnx.NodeProto, ...]
    scales: Array
    thresholds: Array
    bits: int
    axis: int
    is_stored: bool = False

    @property
    def threshold(self) -> float:
        """The largest threshold, which the tables show."""
        return float(np.max(self.thresholds))


@dataclass(frozen=True, slots=True, eq=False)
class OrdinaryNode:
    """A node that is no calibration node.

    ``inputs`` and ``outputs``: names of its tensors, ``""`` for an absent one. ``calibrations``:
    names of the calibration nodes that feed it, in the order of its inputs.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calibrations: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Port:
    """An input or output of the model: sizes (``None`` where they are free) and NumPy dtype."""

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedModel:
    """A calibrated model. ``proto`` is opset 21 with unique names; treat it as read-only.

    ``nodes`` are in topological order, ``calibrations`` in graph order by name.
    """

    proto: onnx.ModelProto
    nodes: tuple[OrdinaryNode, ...]
    calibrations: Mapping[str, CalibrationNode]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    path: str | None = None

    def node(self, name: str) -> OrdinaryNode:
        """The ordinary node of that name; ``KeyError`` if there is none."""
        return next(node for node in self.nodes if node.name == name)

    def names(self, kind: str) -> Sequence[str]:
        """``kind``: ``node`` (ordinary nodes that a calibration node feeds), ``weight`` or
        ``activation``."""
        if kind == "node":
            return [node.name for node in self.nodes if node.calibrations]
        return [item.name for item in self.calibrations.values() if item.kind == kind]
