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

_MOST_NODES = 16  # in an atom, all tensors of which are exposed
_MOST_ATOMS = 64  # in a segment
# work is counted in multiply-adds of a convolution; measured on one core with AVX-512
_CALL = 1_200_000  # of a session
_WORK_OF_AN_ELEMENT = 16  # that is read and written
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


def work(node: onnx.NodeProto, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
    """About how long ``node`` takes with these arrays, in multiply-adds."""
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


def cuts(works: Sequence[int], crossing: Sequence[int], readers: Sequence[int]) -> list[int]:
    """Which atoms begin a segment, so that all nodes in turn are switched on with least work.

    Of each atom: its work, the elements of the tensors that are alive before it, and how many nodes
    in it read calibrated tensors. A node that is on costs its atom opened, those behind it in the
    segment one by one, and the segments behind as a session each, with a call and a copy of what
    crosses. Cheapest cuts by dynamic programming over the sums of both.
    """
    single = _sums(
        w + _CALL + _WORK_OF_A_CROSSING * c for w, c in zip(works, crossing, strict=True)
    )
    plain, nodes = _sums(works), _sums(readers)
    weighted = _sums(n * before for n, before in zip(readers, single, strict=False))
    best: list[tuple[float, int]] = [(0, 0)]
    for stop in range(1, len(works) + 1):
        choices = []
        for start in range(max(0, stop - _MOST_ATOMS), stop):
            within = (nodes[stop] - nodes[start]) * single[stop]
            within -= weighted[stop] - weighted[start]
            cut = _CALL + _WORK_OF_A_CROSSING * crossing[start]
            behind = nodes[start] * (plain[stop] - plain[start] + cut)
            choices.append((best[start][0] + within + behind, start))
        best.append(min(choices))
    found = [best[-1][1]]
    while found[-1]:
        found.append(best[found[-1]][1])
    return found[::-1]


def _sums(values: Iterable[int]) -> list[int]:
    return [0, *itertools.accumulate(values)]
