"""The float run of an item, and what changes in it when some calibration nodes are on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from qtune.onnx_debug.calibrated import CalibrationNode
from qtune.onnx_debug.plan import Segment
from qtune.onnx_debug.segments import Part
from qtune.onnx_debug.switches import Sessions, same

Array = np.ndarray[Any, Any]

_KEPT_BYTES = 1 << 28  # of an item's float run between atoms; from there on it is made again


class FloatRun:
    """An item with all calibration nodes off; of it the tensors at the cuts are kept.

    So are those between atoms, as long as they are few bytes, and the tensors within one segment,
    the last that was asked for.
    """

    def __init__(
        self, sessions: Sessions, segments: tuple[Segment, ...], feed: Mapping[str, Array]
    ) -> None:
        self.sessions = sessions
        self._values = dict(feed)
        self._within: tuple[Segment | None, bool, dict[str, Array]] = (None, False, {})
        self._known: set[Segment] = set()
        size = 0
        for segment in segments:
            if size < _KEPT_BYTES:
                self._known.add(segment)
            for part in segment.atoms if segment in self._known else (segment.whole,):
                made = sessions.run_plain(part, {name: self.tensor(name) for name in part.inputs})
                self._values |= made
                size += sum(array.nbytes for array in made.values())

    def tensor(self, name: str) -> Array:
        """A tensor at a cut or within the last segment; a calibration node passes its input on."""
        root = self.sessions.wiring.root(name)
        for known in (self._within[2], self._values):
            if root in known:
                return known[root]
        return self.sessions.float_form(name)

    def enter(self, segment: Segment, *, is_open: bool) -> None:
        """Make the tensors within ``segment`` known: all (``is_open``), or those between atoms."""
        if self._within[:2] == (segment, is_open):
            return
        self._within = (segment, is_open, {})
        if segment in self._known and not is_open:
            return
        run = self.sessions.run_open if is_open else self.sessions.run_plain
        ends = set(segment.whole.outputs)  # they are the same whoever asks
        for atom in segment.atoms:
            names = (*atom.inputs, *atom.weights) if is_open else atom.inputs
            made = run(atom, {name: self.tensor(name) for name in names})
            self._within[2].update((n, array) for n, array in made.items() if n not in ends)


class Change:
    """The same item with calibration nodes ``on`` (by name), segment after segment."""

    def __init__(self, base: FloatRun, on: Mapping[str, CalibrationNode]) -> None:
        self.base = base
        self.on = on
        self._values: dict[str, Array] = {}
        self._changed: set[str] = set()

    def tensor(self, name: str) -> Array:
        """The tensor as it is now."""
        if name in self._values:
            return self._values[name]
        wiring = self.base.sessions.wiring
        item = wiring.by_output.get(name)
        if item is None or item.is_stored:
            return self.base.tensor(name)
        before = self.tensor(item.source)
        if item.name not in self.on:
            if item.source in self._changed:
                self._note(name, before)
            return before
        after = self.base.sessions.calibrate(self.on[item.name], before)
        if item.source in self._changed or not same(before, after):
            self._note(name, after)
        return after

    def is_changed(self, name: str) -> bool:
        """Whether a tensor that was asked for differs from the float run's."""
        return name in self._changed

    def run(self, segment: Segment, wanted: Collection[str] = ()) -> None:
        """Go through ``segment``; ``wanted``: which of the tensors within it will be asked for."""
        given = {name: self.tensor(name) for name in segment.whole.inputs}
        is_inside = not segment.inside.isdisjoint(self.on)
        if wanted:
            self.base.enter(segment, is_open=True)
        if not is_inside and not any(map(self.is_changed, given)):
            return
        if is_inside or wanted:
            self._run_atoms(segment, frozenset(wanted))
        else:
            self._note_changed(self.base.sessions.run_plain(segment.whole, given))

    def forget(self, segment: Segment) -> None:
        """Let go of what nobody reads behind ``segment``."""
        self._values = {n: array for n, array in self._values.items() if n in segment.kept}

    def _run_atoms(self, segment: Segment, wanted: frozenset[str]) -> None:
        """Atom by atom, open ones where more than their outputs is asked for."""
        if len(segment.atoms) > 1:  # of a single one all that is read is at the cuts
            self.base.enter(segment, is_open=bool(wanted))
        for atom in segment.atoms:
            given = {name: self.tensor(name) for name in atom.inputs}
            others = None if wanted else self._other_weights(atom, given)
            if others is None:
                self._run_open(atom, given, wanted)
            elif others or any(map(self.is_changed, given)):
                self._note_changed(self.base.sessions.run_plain(atom, given, others))

    def _run_open(self, atom: Part, given: Mapping[str, Array], wanted: frozenset[str]) -> None:
        weights = {name: self.tensor(name) for name in atom.weights}
        if any(map(self.is_changed, [*given, *weights])):
            names = [n for n in atom.made if n in atom.outputs or n in wanted]
            self._note_changed(self.base.sessions.run_open(atom, {**given, **weights}, names))

    def _other_weights(self, atom: Part, given: Mapping[str, Array]) -> dict[str, Array] | None:
        """The weights that nodes change, as the atom's session takes them; ``None``: it can't."""
        wiring = self.base.sessions.wiring
        names = [name for name in atom.weights if self._is_on(name)]
        if not names:
            return {}
        items = {name: list(wiring.chain(name)) for name in names}
        if any(len(chain) > 1 for chain in items.values()):
            return None
        on = {name: self.on[item.name] for name, (item,) in items.items()}
        return self.base.sessions.moved_weights(atom, given, on)

    def _is_on(self, name: str) -> bool:
        """Whether a calibration node between ``name`` and its root is on."""
        return any(item.name in self.on for item in self.base.sessions.wiring.chain(name))

    def _note_changed(self, made: Mapping[str, Array]) -> None:
        for name, array in made.items():
            if not same(array, self.base.tensor(name)):
                self._note(name, array)

    def _note(self, name: str, array: Array) -> None:
        self._values[name] = array
        self._changed.add(name)
