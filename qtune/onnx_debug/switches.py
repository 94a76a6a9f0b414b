"""What is run: the sessions of a model's parts, and the calibration nodes between them.

Calibration is done between the sessions, so none is built for a choice of nodes and none depends on
a grid. Of each part there may be two sessions: *plain*, with all float weights in it, packed and
fused with all optimizations; and *open*, which gets the weights as inputs and gives all tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qtune.bpu.ort import new_session
from qtune.errors import RunError
from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug.calibrated import CalibrationNode
from qtune.onnx_debug.segments import Part, Wiring

Array = np.ndarray[Any, Any]

_KEPT_BYTES = 1 << 26  # of calibrated weights, which each item of the data takes again
_SHARED_BYTES = 1024  # from here on a constant is handed to the runtime without a copy


class Sessions:
    """The sessions of a model, made when they are first run."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self._made: dict[tuple[int, int, bool], _Session] = {}
        self._of_calibrations: dict[str, _Session] = {}
        self._kept: dict[str, Array] = {}
        self._room = _KEPT_BYTES

    def run_plain(self, part: Part, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of ``part`` for its ``inputs``; all calibration nodes within are off."""
        return self._session_of(part, feed, is_open=False).run(feed, part.outputs)

    def run_open(
        self, part: Part, feed: Mapping[str, Array], wanted: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """The tensors ``wanted`` (all by default) of an atom for its inputs and weights."""
        session = self._session_of(part, feed, is_open=True)
        return session.run(feed, part.made if wanted is None else wanted)

    def calibrate(self, item: CalibrationNode, array: Array) -> Array:
        """``array`` through the calibration node ``item``; some weights of the model are kept."""
        wiring = self.wiring
        is_fixed = item.source in wiring.constants
        if not is_fixed or wiring.model.calibrations.get(item.name) is not item:
            return self._calibrated(item, array)
        if item.name in self._kept:
            return self._kept[item.name]
        made = self._calibrated(item, array)
        if made.nbytes <= self._room:
            self._room -= made.nbytes
            self._kept[item.name] = made
        return made

    def _calibrated(self, item: CalibrationNode, array: Array) -> Array:
        own = len(item.nodes) == 1 and hz_calibration.is_calibration(item.nodes[0])
        if own and array.dtype == np.float32:
            held = Calibration(item.scales, item.thresholds, item.bits, item.axis)
            return hz_calibration.apply(held, array)
        if item.name not in self._of_calibrations:
            session = self._session(item.nodes, {item.source: array}, [item.output])
            self._of_calibrations[item.name] = session
        feed = {item.source: array}
        return self._of_calibrations[item.name].run(feed, [item.output])[item.output]

    def float_form(self, name: str) -> Array:
        """A constant, or the form it has behind calibration nodes that are off."""
        item = self.wiring.by_output.get(name)
        if item is None:
            return self.wiring.array(name)
        before = self.float_form(item.source)
        return self.calibrate(item, before) if item.is_stored else before

    def _session_of(self, part: Part, feed: Mapping[str, Array], *, is_open: bool) -> _Session:
        key = (part.first, part.last, is_open)
        if key not in self._made:
            self._made[key] = self._new_session(part, feed, is_open)
        return self._made[key]

    def _new_session(self, part: Part, feed: Mapping[str, Array], is_open: bool) -> _Session:
        nodes = self.wiring.nodes[part.first : part.last]
        given = {name: feed[name] for name in part.inputs}
        if is_open:
            given |= {name: feed[name] for name in part.weights}
            return self._session(nodes, given, part.made)
        weights = {name: self.float_form(name) for name in part.weights}
        copies = [helper.make_node("Identity", [n], [name]) for name, n in part.inner.items()]
        return self._session(list(_in_order(nodes, copies)), given, part.outputs, weights)

    def _session(
        self,
        nodes: Sequence[onnx.NodeProto],
        given: Mapping[str, Array],
        outputs: Sequence[str],
        weights: Mapping[str, Array] | None = None,
    ) -> _Session:
        wiring = self.wiring
        read = dict.fromkeys(name for node in nodes for name in node.input)
        constants = {n: wiring.array(n) for n in read if n in wiring.constants and n not in given}
        constants |= weights or {}
        shared = {n: array for n, array in constants.items() if array.nbytes >= _SHARED_BYTES}
        graph = helper.make_graph(
            nodes,
            "part",
            [_input(name, array) for name, array in given.items()],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [_constant(name, array, name in shared) for name, array in constants.items()],
        )
        source = wiring.model.proto
        local = {(item.domain, item.name) for item in source.functions}
        has_local = any((node.domain, node.op_type) in local for node in nodes)
        proto = helper.make_model(
            graph,
            opset_imports=source.opset_import,
            functions=source.functions if has_local else (),
            ir_version=source.ir_version,
        )
        where = f"the nodes {nodes[0].name} to {nodes[-1].name}"
        try:
            session = new_session(proto.SerializeToString(), shared=shared)
        except RunError:
            raise
        except Exception as error:
            raise RunError(f"onnxruntime does not take {where}: {error}") from error
        return _Session(session, where, tuple(given), shared)


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    session: Any
    where: str
    inputs: tuple[str, ...]
    shared: Mapping[str, Array]  # used by the session where they are, so they have to stay

    def run(self, feed: Mapping[str, Array], wanted: Sequence[str]) -> dict[str, Array]:
        given = {name: feed[name] for name in self.inputs}
        try:
            made = self.session.run(list(wanted), given)
        except Exception as error:
            raise RunError(f"onnxruntime can't run {self.where}: {error}") from error
        return dict(zip(wanted, made, strict=True))


def _in_order(
    nodes: Sequence[onnx.NodeProto], copies: Sequence[onnx.NodeProto]
) -> Iterator[onnx.NodeProto]:
    """The nodes with each copy behind the node that makes what it reads."""
    waiting: dict[str, list[onnx.NodeProto]] = {}
    for copy in copies:
        waiting.setdefault(copy.input[0], []).append(copy)
    for node in nodes:
        yield node
        for name in node.output:
            yield from waiting.pop(name, ())


def _input(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, [None] * array.ndim)


def _constant(name: str, array: Array, is_shared: bool) -> onnx.TensorProto:
    if not is_shared:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    proto = TensorProto(name=name, data_type=kind, dims=array.shape)
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "shared"), ("offset", "0"), ("length", str(array.nbytes))):
        proto.external_data.add(key=key, value=value)
    return proto
