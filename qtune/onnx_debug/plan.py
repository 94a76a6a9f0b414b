"""The segments of a model, cut where for its first item little goes across."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.onnx_debug.segments import Part, Shape, Wiring, cuts, work
from qtune.onnx_debug.sizes import inferred_sizes
from qtune.onnx_debug.switches import Sessions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A run of atoms.

    ``whole``: all of it as one part. ``inside``: names of the calibration nodes of its weights and
    of tensors that it makes itself, which only its atoms can run. ``kept``: tensors and outputs of
    calibration nodes that are read behind it.
    """

    whole: Part
    atoms: tuple[Part, ...]
    inside: frozenset[str]
    kept: frozenset[str]


def segments(sessions: Sessions, feed: Mapping[str, Array]) -> tuple[Segment, ...]:
    """Cut the model of ``sessions``; ``feed`` is the item that tells the sizes."""
    wiring = sessions.wiring
    atoms = [wiring.part(*bounds) for bounds in wiring.atoms()]
    if not atoms:
        return ()
    sizes = inferred_sizes(wiring, feed)
    if not wiring.maker.keys() <= sizes.keys():
        sizes |= _probed(sessions, atoms, feed)
    sessions.sizes = sizes
    readers = [
        sum(
            not wiring.by_output.keys().isdisjoint(names)
            for names in wiring.reads[a.first : a.last]
        )
        for a in atoms
    ]
    works = [_work(wiring, atom, sizes) for atom in atoms]
    packed = [sessions.packed(atom) for atom in atoms]
    starts = cuts(works, _crossing(wiring, atoms, feed, sizes), readers, packed)
    groups = [atoms[i:j] for i, j in zip(starts, [*starts[1:], len(atoms)], strict=True)]
    return tuple(_segment(wiring, group) for group in groups)


def _segment(wiring: Wiring, atoms: list[Part]) -> Segment:
    whole = wiring.part(atoms[0].first, atoms[-1].last)
    inner = {item.name for name in whole.inner for item in wiring.chain(name)}
    later = {name for names in wiring.reads[whole.last :] for name in names}
    later.update(wiring.outputs)
    later.update([item.source for name in later for item in wiring.chain(name)])
    return Segment(
        whole,
        tuple(atoms),
        frozenset(inner).union(wiring.by_output[name].name for name in whole.weights),
        frozenset(later),
    )


def _work(wiring: Wiring, atom: Part, sizes: Mapping[str, Shape]) -> int:
    return sum(
        work(
            node.op_type,
            [sizes[wiring.root(name)] for name in node.input if name],
            [sizes[name] for name in node.output if name],
        )
        for node in wiring.nodes[atom.first : atom.last]
    )


def _crossing(
    wiring: Wiring, atoms: list[Part], feed: Collection[str], sizes: Mapping[str, Shape]
) -> list[int]:
    """Of each atom the elements of the tensors that are alive before it."""
    last = {wiring.root(n): i for i, names in enumerate(wiring.reads) for n in names}
    alive, found = set(feed), []
    for atom in atoms:
        alive = {name for name in alive if last.get(name, -1) >= atom.first}
        found.append(sum(math.prod(sizes[name]) for name in alive))
        alive.update(atom.made)
    return found


def _probed(sessions: Sessions, atoms: list[Part], feed: Mapping[str, Array]) -> dict[str, Shape]:
    """The sizes of all tensors that nodes make, from a run of ``feed``."""
    wiring = sessions.wiring
    last = {wiring.root(n): i for i, names in enumerate(wiring.reads) for n in names}
    values = dict(feed)
    sizes: dict[str, Shape] = {}
    for atom in atoms:
        values = {name: array for name, array in values.items() if last.get(name, -1) >= atom.first}
        given = {name: _float(sessions, values, name) for name in (*atom.inputs, *atom.weights)}
        values |= sessions.run_open(atom, given)
        sizes |= {name: _size(values[name], name) for name in atom.made}
    return sizes


def _size(made: Any, name: str) -> Shape:
    if not isinstance(made, np.ndarray):
        raise NotImplementedError(
            f"{name!r} is a {type(made).__name__} of tensors (a sequence or an optional); the "
            "debugger takes tensors only: end the model before it (output_nodes)"
        )
    return made.shape


def _float(sessions: Sessions, values: Mapping[str, Array], name: str) -> Array:
    root = sessions.wiring.root(name)
    return values[root] if root in values else sessions.float_form(name)
