"""The calibrated model for other tools: standard pairs in the place of calibration nodes.

QuantizeLinear rounds ties to even, a calibration node rounds them up, so that a value on a tie may
be one step off; every other value is the same. Weights are stored as codes, and are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.hbir.onnx_import.graph_view import drop_unused_initializers, replace_nodes
from qtune.hbir.onnx_import.names import free_name

Array = np.ndarray[Any, Any]

_ELEMENTS: Mapping[int, int] = {
    4: onnx.TensorProto.INT4,
    8: onnx.TensorProto.INT8,
    16: onnx.TensorProto.INT16,
}
"""Bits -> element type of the codes; opset 21 has pairs of all three."""


def pairs_model(calibrated: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of ``calibrated`` (opset 21) in standard operators; ``calibrated`` stays as it is.

    A calibration node of a constant becomes a DequantizeLinear of stored codes, any other one a
    QuantizeLinear and a DequantizeLinear. Pairs that the model has already stay.
    """
    made = onnx.ModelProto()
    made.CopyFrom(calibrated)
    work = _Pairs(made.graph)
    replace_nodes(made.graph, [new for node in made.graph.node for new in work.nodes(node)])
    made.graph.initializer.extend(work.constants)
    drop_unused_initializers(made.graph)
    del made.functions[:]
    standard = [entry for entry in made.opset_import if not entry.domain]
    del made.opset_import[:]
    made.opset_import.extend(standard)
    return made


class _Pairs:
    """Makes the nodes; ``constants``: what they need."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.arrays = {tensor.name: tensor for tensor in graph.initializer}
        self.names = {node.name for node in graph.node}
        self.tensors = {name for node in graph.node for name in (*node.input, *node.output)}
        self.tensors |= set(self.arrays)
        self.constants: list[onnx.TensorProto] = []

    def nodes(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """What takes the place of ``node``."""
        if not hz_calibration.is_calibration(node):
            return [node]
        held = hz_calibration.calibration_of(node)
        source, output = node.input[0], node.output[0]
        grid = self._grid(node.name, held)
        axis: dict[str, Any] = {} if held.axis < 0 else {"axis": held.axis}
        found = []
        if source in self.arrays:
            array = numpy_helper.to_array(self.arrays[source])
            scale = held.along(array.ndim)
            codes = np.rint(hz_calibration.apply(held, array) / scale)
            stored = self._constant(f"{source}_codes", codes, _ELEMENTS[held.bits])
        else:
            stored = self._free(f"{source}_codes", self.tensors)
            name = self._free(f"{node.name}_QuantizeLinear", self.names)
            found.append(
                helper.make_node("QuantizeLinear", [source, *grid], [stored], name, **axis)
            )
        name = self._free(f"{node.name}_DequantizeLinear", self.names)
        found.append(helper.make_node("DequantizeLinear", [stored, *grid], [output], name, **axis))
        return found

    def _grid(self, name: str, held: Calibration) -> list[str]:
        scales = held.scales if held.axis >= 0 else held.scales.reshape(())
        float32 = onnx.TensorProto.FLOAT
        zeros = np.zeros(scales.shape, np.float32)
        return [
            self._constant(f"{name}_scale", scales, float32),
            self._constant(f"{name}_zero_point", zeros, _ELEMENTS[held.bits]),
        ]

    def _constant(self, base: str, array: Array, element: int) -> str:
        name = self._free(base, self.tensors)
        dtype = helper.tensor_dtype_to_np_dtype(element)
        self.constants.append(numpy_helper.from_array(np.asarray(array).astype(dtype), name))
        return name

    def _free(self, base: str, taken: set[str]) -> str:
        name = free_name(base, taken)
        taken.add(name)
        return name
