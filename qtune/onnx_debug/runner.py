"""Runs a calibrated model with any of its calibration nodes on, the others as identity.

The float run of an item goes atom by atom, and its tensors are kept. With some nodes on, only
segments are run that get other values than they got then: one with a node inside that is on goes
atom by atom, with the calibration between the atoms; the others are sessions as large as pays. A
value that calibration leaves as it was counts as unchanged: nothing behind it is run, and the
result is that of the float run, bit by bit. Elsewhere float arithmetic in another order (sessions
of other sizes and other operators) differs by some units in the last place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qtune.errors import ArgumentError
from qtune.onnx_debug.calibrated import CalibratedModel, CalibrationNode
from qtune.onnx_debug.changes import Change, FloatRun
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.onnx_debug.plan import Segment, segments
from qtune.onnx_debug.segments import Wiring
from qtune.onnx_debug.switches import Sessions

Array = np.ndarray[Any, Any]
_Way = tuple[dict[Segment | None, list[str]], list[Segment]]


class Runner:
    """``model`` on the items of ``data``, with chosen calibration nodes on.

    Sessions of onnxruntime (one thread) are made once, when they are first needed, one for all
    parts of the same structure. The float weights are in memory once more than in the model: those
    of convolutions in the form that sessions take (:mod:`qtune.onnx_debug.blocked`), others as
    onnxruntime packs them, in each session; of the data one item's tensors at the cuts, and up to
    256 MB of those between atoms. Calibrated weights that are asked for again are kept, up to
    64 MB. The same call gives the same bits, whatever was run before.
    """

    def __init__(self, model: CalibratedModel, data: CalibrationDataSet) -> None:
        self.model = model
        self.data = data
        self._wiring = Wiring(model)
        self._sessions = Sessions(self._wiring)
        self._segments: tuple[Segment, ...] | None = None
        self._float: tuple[int, FloatRun] | None = None
        self._ways: dict[tuple[str, ...], _Way] = {}

    def values(
        self,
        index: int,
        on: Collection[str] | Mapping[str, CalibrationNode] = (),
        wanted: Sequence[str] | None = None,
    ) -> dict[str, Array]:
        """Tensors ``wanted`` (default: the model's outputs) of item ``index``, by name.

        ``on``: names of the calibration nodes that work; the others pass their input on. A mapping
        gives nodes with another grid in the place of the model's. The arrays are read-only.
        """
        names = self._wiring.outputs if wanted is None else tuple(wanted)
        places, needed = self._way(names)
        change = Change(self._float_run(index), self._nodes(on))
        found = {name: change.tensor(name) for name in places.get(None, ())}
        for segment in needed:
            here = places.get(segment, [])
            within = {self._wiring.root(name) for name in here} - set(segment.whole.outputs)
            change.run(segment, within)
            found |= {name: change.tensor(name) for name in here}
            change.forget(segment)
        return {name: found[name] for name in names}

    def stream(
        self,
        index: int,
        on: Collection[str] | Mapping[str, CalibrationNode],
        wanted: Collection[str] | None = None,
    ) -> Iterator[tuple[str, Array, Array]]:
        """``(tensor, float array, array with on)`` of item ``index`` in topological order.

        ``wanted``: default all tensors that ordinary nodes make; also inputs of the model and
        outputs of calibration nodes. Held are the tensors of one segment and those at the cuts.
        """
        everything = [name for node in self.model.nodes for name in node.outputs if name]
        names = list(dict.fromkeys(everything if wanted is None else wanted))
        places = self._places(names)
        base = self._float_run(index)
        change = Change(base, self._nodes(on))
        yield from ((n, base.tensor(n), change.tensor(n)) for n in places.get(None, ()))
        for segment in self._needed(places):
            here = places.get(segment, [])
            change.run(segment, {self._wiring.root(name) for name in here})
            rows = [(n, base.tensor(n), change.tensor(n)) for n in here]  # others may use base, too
            change.forget(segment)
            yield from rows

    def _plan(self) -> tuple[Segment, ...]:
        if self._segments is None:
            self._segments = segments(self._sessions, self.data[0])
        return self._segments

    def _float_run(self, index: int) -> FloatRun:
        if self._float is None or self._float[0] != index:
            self._float = None  # never two items at a time
            self._float = (index, FloatRun(self._sessions, self._plan(), self.data[index]))
        return self._float[1]

    def _nodes(
        self, on: Collection[str] | Mapping[str, CalibrationNode]
    ) -> Mapping[str, CalibrationNode]:
        known = self.model.calibrations
        unknown = [name for name in on if name not in known]
        if unknown:
            raise ArgumentError(f"no calibration nodes of the model: {', '.join(unknown)}")
        return on if isinstance(on, Mapping) else {name: known[name] for name in on}

    def _way(self, names: tuple[str, ...]) -> _Way:
        """Where the tensors are made, and the segments up to there; looked up once."""
        if names not in self._ways:
            places = self._places(names)
            self._ways[names] = (places, self._needed(places))
        return self._ways[names]

    def _places(self, wanted: Sequence[str]) -> dict[Segment | None, list[str]]:
        """The tensors by the segment that makes them, in its order; ``None``: inputs, constants."""
        wiring, plan = self._wiring, self._plan()
        known = {*wiring.maker, *wiring.by_output, *wiring.constants}
        unknown = [name for name in wanted if name not in known.union(self._inputs())]
        if unknown:
            raise ArgumentError(f"no tensors of the model: {', '.join(unknown)}")
        found: dict[Segment | None, list[str]] = {}
        for name in sorted(wanted, key=lambda name: wiring.maker.get(wiring.root(name), -1)):
            maker = wiring.maker.get(wiring.root(name), -1)
            place = next((s for s in plan if s.whole.first <= maker < s.whole.last), None)
            found.setdefault(place, []).append(name)
        return found

    def _inputs(self) -> set[str]:
        return {port.name for port in self.model.inputs}

    def _needed(self, places: Collection[Segment | None]) -> list[Segment]:
        """The segments that the places depend on, in their order."""
        found: list[Segment] = []
        read: set[str] = set()
        for segment in reversed(self._plan()):
            if segment in places or not read.isdisjoint(segment.whole.made):
                found.append(segment)
                read.update(map(self._wiring.root, segment.whole.inputs))
        return found[::-1]
