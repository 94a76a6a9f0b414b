"""How a calibrated model is cut: into atoms between calibration nodes, and into segments of them.

An *atom* is a run of ordinary nodes, in graph order, in which no node reads the calibrated form of
a tensor that the atom itself makes. So calibration happens between atoms only, outside of any
session. A *segment* is a run of atoms; its calibration nodes are left out (their float form).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtune.onnx_debug.calibrated import CalibratedModel, CalibrationNode

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

_KEPT_BYTES = 1 << 16  # of a constant
_MOST_NODES = 16  # in an atom, all tensors of which are exposed
_MOST_ATOMS = 64  # in a segment
# work is counted in multiply-adds of a convolution; measured on one core with AVX-512
_CALL = 1_200_000  # of a session
_WORK_OF_AN_ELEMENT = 16  # that is read and written
_WORK_OF_A_SESSION = 15_000_000
_WORK_OF_A_PACKED_WEIGHT = 500  # an element; mostly for memory that is new to the process
_WORK_OF_A_CROSSING = 100  # an element that leaves the blocked layout of a session and enters again


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
        constants = {node.name: node for node in graph.node if node.op_type == "Constant"}
        self.constants |= {node.output[0]: _as_tensor(node) for node in constants.values()}
        ordinary = {node.name for node in model.nodes} - set(constants)
        self.nodes = [node for node in graph.node if node.name in ordinary]
        self.reads = [tuple(dict.fromkeys(filter(None, node.input))) for node in self.nodes]
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.outputs = tuple(port.name for port in model.outputs)
        self._arrays: dict[str, Array] = {}

    def array(self, name: str) -> Array:
        """The constant ``name``; a large one is a copy, which is not kept."""
        if name in self._arrays:
            return self._arrays[name]
        array = numpy_helper.to_array(self.constants[name])
        if array.nbytes < _KEPT_BYTES:
            self._arrays[name] = array
        return array

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


def _as_tensor(constant: onnx.NodeProto) -> onnx.TensorProto:
    (attribute,) = constant.attribute
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return value  # type: ignore[no-any-return]
    kinds: dict[str, Any] = {"value_float": np.float32, "value_floats": np.float32}
    kinds |= {"value_int": np.int64, "value_ints": np.int64}
    if attribute.name not in kinds:
        raise NotImplementedError(f"{constant.name}: a Constant with {attribute.name}")
    return numpy_helper.from_array(np.asarray(value, kinds[attribute.name]))


def work(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """About how long a node takes with arrays of these sizes, in multiply-adds."""
    read, made = [math.prod(shape) for shape in inputs], [math.prod(shape) for shape in outputs]
    return _multiply_adds(op, inputs, read, made) + _WORK_OF_AN_ELEMENT * (sum(read) + sum(made))


def _multiply_adds(
    op: str, inputs: Sequence[Shape], read: Sequence[int], made: Sequence[int]
) -> int:
    if op in ("Conv", "ConvInteger"):
        return made[0] * math.prod(inputs[1][1:])
    if op == "ConvTranspose":
        return read[0] * math.prod(inputs[1][1:])
    if op in ("MatMul", "Gemm", "MatMulInteger"):
        return math.isqrt(read[0] * read[1] * made[0])
    if op in ("LSTM", "GRU", "RNN"):
        return math.prod(inputs[0][:2]) * (read[1] + read[2])
    return 0


def cuts(
    works: Sequence[int], crossing: Sequence[int], readers: Sequence[int], packed: Sequence[int]
) -> list[int]:
    """Which atoms begin a segment, so that all nodes in turn are switched on with least work.

    Of each atom: its work, the elements of the tensors that are alive before it, how many nodes in
    it read calibrated tensors, and the elements of weights that each session packs anew. A node
    that is on costs its atom, those behind it in the segment one by one, and the segments behind as
    a session each, with a call and a copy of what crosses. A segment of several atoms costs a
    session more. Cheapest cuts for one item by dynamic programming over the sums of all.
    """
    single = _sums(
        w + _CALL + _WORK_OF_A_CROSSING * c for w, c in zip(works, crossing, strict=True)
    )
    plain, nodes = _sums(works), _sums(readers)
    weighted = _sums(n * before for n, before in zip(readers, single, strict=False))
    weights = _sums(packed)
    best: list[tuple[float, int]] = [(0, 0)]
    for stop in range(1, len(works) + 1):
        choices = []
        for start in range(max(0, stop - _MOST_ATOMS), stop):
            within = (nodes[stop] - nodes[start]) * single[stop]
            within -= weighted[stop] - weighted[start]
            cut = _CALL + _WORK_OF_A_CROSSING * crossing[start]
            behind = nodes[start] * (plain[stop] - plain[start] + cut)
            made = _WORK_OF_A_SESSION + _WORK_OF_A_PACKED_WEIGHT * (weights[stop] - weights[start])
            again = made if stop - start > 1 else 0
            choices.append((best[start][0] + within + behind + again, start))
        best.append(min(choices))
    found = [best[-1][1]]
    while found[-1]:
        found.append(best[found[-1]][1])
    return found[::-1]


def _sums(values: Iterable[int]) -> list[int]:
    return [0, *itertools.accumulate(values)]
