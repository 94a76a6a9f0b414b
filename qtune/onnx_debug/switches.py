"""What is run: the sessions of a model's parts, and the calibration nodes between them.

Calibration is done between the sessions, so none is built for a choice of nodes and none depends on
a grid. Of each part there may be two sessions: *plain*, with the float weights, fused with all
optimizations; and *open*, which gets the weights of calibration nodes as inputs, and gives all
tensors. The weights of convolutions are inputs of a plain one, too, where it is as fast so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from qtune.hbir import hz_calibration
from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug.blocked import Form, Rewriting, aligned, renamed
from qtune.onnx_debug.calibrated import CalibrationNode
from qtune.onnx_debug.segments import Part, Shape, Wiring
from qtune.onnx_debug.structures import SHARED_BYTES, Session, Structures

Array = np.ndarray[Any, Any]

_KEPT_BYTES = 1 << 26  # of calibrated weights, which each item of the data takes again
_NONE = np.empty(0, np.float32)
_SAMPLES = 64


class Sessions:
    """The sessions of a model, made when they are first run."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self._made: dict[tuple[int, int, bool], Session] = {}
        self._of_calibrations: dict[str, Session] = {}
        self._kept: dict[str, Array] = {}
        self._asked: set[str] = set()  # what is asked for once is not kept
        self._room = _KEPT_BYTES
        self._structures = Structures(wiring.model.proto)
        self._rooms: dict[int, Array] = {}
        self._rewritten: dict[tuple[int, int], Rewriting] = {}
        self._in_form: dict[Form, Array] = {}
        self.sizes: Mapping[str, Shape] = {}  # of the tensors, of one item

    def run_plain(
        self, part: Part, feed: Mapping[str, Array], others: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """The outputs of ``part`` for its ``inputs``; all calibration nodes within are off.

        ``others``: of :meth:`moved_weights`.
        """
        if not part.outputs:  # nodes whose results nobody reads
            return {}
        session = self._session_of(part, feed, is_open=False)
        weights = {name: self._in_its_form(form) for name, form in session.forms.items()}
        return session.run({**feed, **weights, **(others or {})}, part.outputs)

    def moved_weights(
        self, part: Part, feed: Mapping[str, Array], on: Mapping[str, CalibrationNode]
    ) -> dict[str, Array] | None:
        """What :meth:`run_plain` takes so that nodes are on, by the weight of ``part`` they make.

        Only weights that they change; ``None`` where a weight is no input of the session. To be
        used before the next call, since their memory is used again.
        """
        if not part.outputs:
            return {}
        session = self._session_of(part, feed, is_open=False)
        sources = {form.source for form in session.forms.values()}
        if not sources.issuperset(on) or not session.names.keys().isdisjoint(on):
            return None
        found: dict[str, Array] = {}
        for place, (name, form) in enumerate(session.forms.items()):
            if form.source not in on:
                continue
            made = self._moved(form, on[form.source], place)
            if made is None:
                return None
            if not same(made, self._in_its_form(form)):
                found[name] = made
        return found

    def _moved(self, form: Form, item: CalibrationNode, place: int) -> Array | None:
        key = f"{item.name} {form}"
        if key in self._kept and self._is_of_model(item):
            return self._kept[key]
        before = self._in_its_form(form)
        scale = form.scales(item.scales, item.axis, before.ndim)
        sizes = self.wiring.constants[self.wiring.root(form.source)].dims
        is_fit = item.axis < 0 or list(sizes[item.axis : item.axis + 1]) == [item.scales.size]
        if not (_is_own(item) and is_fit) or scale is None or before.dtype != np.float32:
            return None
        if self._rooms.get(place, _NONE).size < before.size:
            self._rooms[place] = aligned(before.shape).reshape(-1)
        made = self._rooms[place][: before.size].reshape(before.shape)
        hz_calibration.apply(_held(item), form.seen(before), scale, form.seen(made))
        if self._is_of_model(item) and self._is_kept(key, made.nbytes):
            self._kept[key] = aligned(made.shape)
            self._kept[key][...] = made
        return made

    def _in_its_form(self, form: Form) -> Array:
        if form not in self._in_form:
            self._in_form[form] = form.of(self.float_form(form.source))
        return self._in_form[form]

    def run_open(
        self, part: Part, feed: Mapping[str, Array], wanted: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """The tensors ``wanted`` (all by default) of an atom for its inputs and weights."""
        session = self._session_of(part, feed, is_open=True)
        return session.run(feed, part.made if wanted is None else wanted)

    def calibrate(self, item: CalibrationNode, array: Array) -> Array:
        """``array`` through the calibration node ``item``; some weights of the model are kept."""
        if item.source not in self.wiring.constants or not self._is_of_model(item):
            return self._calibrated(item, array)
        if item.name in self._kept:
            return self._kept[item.name]
        made = self._calibrated(item, array)
        if self._is_kept(item.name, made.nbytes):
            self._kept[item.name] = made
        return made

    def _is_of_model(self, item: CalibrationNode) -> bool:
        return self.wiring.model.calibrations.get(item.name) is item

    def _is_kept(self, key: str, size: int) -> bool:
        """Whether there is room for what is made for the second time at least."""
        is_again = key in self._asked
        self._asked.add(key)
        if not is_again or size > self._room:
            return False
        self._room -= size
        return True

    def _calibrated(self, item: CalibrationNode, array: Array) -> Array:
        if _is_own(item) and array.dtype == np.float32:
            return hz_calibration.apply(_held(item), array)
        if item.name not in self._of_calibrations:
            given = {item.source: array}
            constants = self._constants(item.nodes, given)
            session = self._structures.session(item.nodes, given, [item.output], constants)
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

    def _session_of(self, part: Part, feed: Mapping[str, Array], *, is_open: bool) -> Session:
        key = (part.first, part.last, is_open)
        if key not in self._made:
            self._made[key] = self._new_session(part, feed, is_open)
        return self._made[key]

    def _new_session(self, part: Part, feed: Mapping[str, Array], is_open: bool) -> Session:
        given = {name: feed[name] for name in part.inputs}
        if is_open:
            nodes = self.wiring.nodes[part.first : part.last]
            given |= {name: feed[name] for name in part.weights}
            return self._structures.session(nodes, given, part.made, self._constants(nodes, given))
        made = self._rewriting(part)
        del self._rewritten[part.first, part.last]
        given |= {name: self._in_its_form(form) for name, form in made.forms.items()}
        read = {name for node in made.nodes for name in node.input}
        constants = self._constants(made.nodes, given)
        constants |= {name: self.float_form(name) for name in part.weights if name in read}
        return self._structures.session(
            made.nodes, given, part.outputs, constants, made.forms, made.fixed
        )

    def _constants(
        self, nodes: Sequence[onnx.NodeProto], given: Collection[str]
    ) -> dict[str, Array]:
        read = dict.fromkeys(name for node in nodes for name in node.input)
        wiring = self.wiring
        return {n: wiring.array(n) for n in read if n in wiring.constants and n not in given}

    def packed(self, part: Part) -> int:
        """Elements of the weights that the session of ``part`` packs itself."""
        made = self._rewriting(part)
        read = {name for node in made.nodes for name in node.input}
        names = [name for name in part.weights if name in read]
        names += [name for name in read if name in self.wiring.constants]
        sizes = [math.prod(self.wiring.constants[self.wiring.root(n)].dims) for n in names]
        return sum(size for size in sizes if size * 4 >= SHARED_BYTES)

    def _rewriting(self, part: Part) -> Rewriting:
        key = (part.first, part.last)
        if key not in self._rewritten:
            self._rewritten[key] = self._new_rewriting(part)
        return self._rewritten[key]

    def _new_rewriting(self, part: Part) -> Rewriting:
        wiring = self.wiring
        nodes = [renamed(n, part.inner) for n in wiring.nodes[part.first : part.last]]
        names = [*(name for node in nodes for name in (*node.input, *node.output)), *part.outputs]
        uses = Counter([*(name for node in nodes for name in node.input), *part.outputs])
        sizes = {name: self.sizes.get(wiring.root(name), ()) for name in names}
        fixed = wiring.constants.keys() | set(part.weights)
        made = Rewriting(
            weights={n: s for n in names if n in fixed and (s := self._float_sizes(n)) is not None},
            channels={name: sizes[name][1] for name in part.inputs if len(sizes[name]) == 4},
            shapes=sizes,
            uses=uses,
            taken=set(names),
        )
        for node in nodes:
            made.add(node)
        made.end(part.outputs)
        return made

    def _float_sizes(self, weight: str) -> Shape | None:
        """The sizes of a weight that is float32 with its calibration nodes off, else ``None``."""
        wiring = self.wiring
        codes = next((item for item in wiring.chain(weight) if item.is_stored), None)
        tensor = wiring.constants[wiring.root(weight)]
        typed = tensor if codes is None else wiring.constants.get(codes.nodes[-1].input[1])
        is_float = typed is not None and typed.data_type == onnx.TensorProto.FLOAT
        return tuple(tensor.dims) if is_float else None


def _is_own(item: CalibrationNode) -> bool:
    return len(item.nodes) == 1 and hz_calibration.is_calibration(item.nodes[0])


def _held(item: CalibrationNode) -> Calibration:
    return Calibration(item.scales, item.thresholds, item.bits, item.axis)


def same(a: Array, b: Array) -> bool:
    """Whether all elements are equal; mostly a few of them tell."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    few = slice(None, None, a.size // _SAMPLES + 1)
    flat, other = a.reshape(-1), b.reshape(-1)
    return bool((flat[few] == other[few]).all() and (flat == other).all())
