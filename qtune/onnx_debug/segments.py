"""How a calibrated model is cut: into atoms between calibration nodes, and into segments of them.

An *atom* is a run of ordinary nodes, in graph order, in which no node reads the calibrated form of
a tensor that the atom itself makes. So calibration happens between atoms only, outside of any
session. A *segment* is a run of atoms; its calibration nodes are left out (their float form).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtune.onnx_debug.calibrated import CalibratedModel, CalibrationNode

Array = np.ndarray[Any, Any]

_MOST_NODES = 16  # in an atom, all tensors of which are exposed
_MOST_SEGMENTS = 16
_LEAST_WORK = 1_200_000  # multiply-adds that take about as long as the call of a session
_WORK_OF_AN_ELEMENT = 16  # an element that is read and written, in multiply-adds


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Ordinary nodes ``first`` to ``last`` (exclusive) that are run together.

    ``inputs``: what it reads from outside: tensors, and outputs of calibration nodes, which are
    tensors of their own. ``weights``: outputs of calibration nodes of constants. ``inner``: outputs
    of calibration nodes that read what the part makes, with that tensor. ``made``: what it makes;
    ``outputs``: what others read of that.
    """

    first: int
    last: int
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    inner: Mapping[str, str]
    made: tuple[str, ...]
    outputs: tuple[str, ...]


class Wiring:
    """Who makes and who reads which tensor; ``nodes`` are the ordinary ones without constants."""

    def __init__(self, model: CalibratedModel) -> None:
        graph = model.proto.graph
        self.model = model
        self.by_output = {item.output: item for item in model.calibrations.values()}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.constants |= dict(_constant_nodes(graph))
        calibrating = {node.name for item in model.calibrations.values() for node in item.nodes}
        self.nodes = [
            node
            for node in graph.node
            if node.name not in calibrating and not set(node.output) <= self.constants.keys()
        ]
        self.reads = [tuple(dict.fromkeys(tensors_read(node))) for node in self.nodes]
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.outputs = tuple(port.name for port in model.outputs)
        self._arrays: dict[str, Array] = {}

    def array(self, name: str) -> Array:
        """The constant ``name``."""
        if name not in self._arrays:
            self._arrays[name] = numpy_helper.to_array(self.constants[name])
        return self._arrays[name]

    def root(self, name: str) -> str:
        """The tensor behind the calibration nodes that make ``name``; ``name`` if there is none."""
        while name in self.by_output:
            name = self.by_output[name].source
        return name

    def chain(self, name: str) -> Iterator[CalibrationNode]:
        """The calibration nodes between ``name`` and its root, the last one first."""
        while name in self.by_output:
            yield self.by_output[name]
            name = self.by_output[name].source

    def atoms(self) -> list[tuple[int, int]]:
        """First and last (exclusive) node of each atom."""
        found, first = [], 0
        for index, names in enumerate(self.reads):
            made = {self.maker.get(self.root(name), -1) for name in names if name in self.by_output}
            if index > first and (max(made, default=-1) >= first or index - first >= _MOST_NODES):
                found.append((first, index))
                first = index
        return [*found, (first, len(self.nodes))] if self.nodes else []

    def part(self, first: int, last: int) -> Part:
        """The nodes ``first`` to ``last`` (exclusive) and what goes in and out."""
        made = tuple(name for node in self.nodes[first:last] for name in node.output if name)
        reads = dict.fromkeys(name for names in self.reads[first:last] for name in names)
        outside = [name for name in reads if name not in made and name not in self.constants]
        inner = {n: self.root(n) for n in outside if self.root(n) in made}
        weights = tuple(
            n for n in outside if n in self.by_output and self.by_output[n].source in self.constants
        )
        later = {self.root(name) for names in self.reads[last:] for name in names}
        later.update(self.root(name) for name in self.outputs)
        return Part(
            first,
            last,
            tuple(n for n in outside if n not in inner and n not in weights),
            weights,
            inner,
            made,
            tuple(name for name in made if name in later),
        )


def _constant_nodes(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            (attribute,) = node.attribute
            tensor = _as_tensor(attribute)
            if tensor is not None:
                yield node.output[0], tensor


def _as_tensor(attribute: onnx.AttributeProto) -> onnx.TensorProto | None:
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return value  # type: ignore[no-any-return]
    kinds = {"value_float": np.float32, "value_floats": np.float32}
    kinds |= {"value_int": np.int64, "value_ints": np.int64}
    if attribute.name not in kinds:
        return None
    return numpy_helper.from_array(np.asarray(value, kinds[attribute.name]))


def tensors_read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, also within its subgraphs."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            own = {item.name for item in (*graph.input, *graph.initializer)}
            own.update(name for inside in graph.node for name in inside.output)
            wanted = [name for inside in graph.node for name in tensors_read(inside)]
            wanted.extend(item.name for item in graph.output)
            yield from (name for name in wanted if name not in own)


def work(node: onnx.NodeProto, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
    """About how long ``node`` takes, in multiply-adds; ``inputs`` and ``outputs`` are its arrays."""
    elements = sum(array.size for array in (*inputs, *outputs))
    return _multiply_adds(node.op_type, inputs, outputs) + _WORK_OF_AN_ELEMENT * elements


def _multiply_adds(op: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
    if op in ("Conv", "ConvInteger"):
        return int(outputs[0].size * math.prod(inputs[1].shape[1:]))
    if op == "ConvTranspose":
        return int(inputs[0].size * math.prod(inputs[1].shape[1:]))
    if op in ("MatMul", "Gemm", "MatMulInteger"):
        return int(math.isqrt(inputs[0].size * inputs[1].size * outputs[0].size))
    if op in ("LSTM", "GRU", "RNN"):
        return int(math.prod(inputs[0].shape[:2]) * (inputs[1].size + inputs[2].size))
    return 0


def cuts(costs: Sequence[int], crossing: Sequence[int]) -> list[int]:
    """Where to cut atoms into segments of like cost: indices of the atoms that begin one.

    ``costs``: of each atom. ``crossing``: elements of the tensors that are alive before each atom.
    The number of segments grows with the root of the whole cost: what a shorter way to run saves,
    calls of sessions must not eat up. Near each place of equal shares the narrowest cut is taken.
    """
    whole = sum(costs)
    count = max(1, min(_MOST_SEGMENTS, len(costs), math.isqrt(whole // _LEAST_WORK)))
    before = np.concatenate(([0], np.cumsum(costs)))
    found = [0]
    for share in range(1, count):
        target, reach = whole * share / count, whole / count / 3
        choices = [i for i in range(found[-1] + 1, len(costs)) if abs(before[i] - target) <= reach]
        if choices:
            found.append(min(choices, key=lambda i: (crossing[i], abs(before[i] - target))))
    return found
