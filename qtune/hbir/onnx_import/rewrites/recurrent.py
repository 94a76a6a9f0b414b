"""What LSTM, GRU and RNN share: one set of float operators for each step of each direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode
from qtune.ops.kernel import Builder, Value

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Whether each direction of the attribute runs backwards."""

_LENGTHS = 4
"""The input with the lengths of the sequences."""

States = tuple[Value, ...]
"""The hidden state of a step, and the cell state of an LSTM."""


@dataclass(frozen=True, slots=True)
class Direction:
    """Matrices as MatMul takes them; ``biases``: of the input and of the state, one for each."""

    of_input: Value
    of_state: Value
    biases: tuple[Value, Value] | None

    def bias(self, b: Builder) -> Value | None:
        """Both biases in one."""
        if self.biases is None:
            return None
        total: Value = b.add("Add", list(self.biases))
        return total


Cell = Callable[[Value, States], States]
"""One step: the input and the states before it -> the states behind it."""


def unrolled(
    b: Builder,
    node: OnnxNode,
    gates: int,
    starts: Sequence[int],
    cell_of: Callable[[Direction], Cell],
) -> Any:
    """The results of ``node``: all hidden states, then the last of each state.

    ``gates``: how many matrices lie one behind the other; ``starts``: the inputs with the first
    states.
    """
    reverse = _reverse(node)
    parts = steps(b, node.inputs[0], node.shape()[0])
    cells = [cell_of(direction) for direction in _directions(b, node, gates, len(reverse))]
    states = _starts(b, node, starts, len(reverse))
    done = [
        _run(parts, cell, first, backwards)
        for cell, first, backwards in zip(cells, states, reverse, strict=True)
    ]
    rows = [stacked(b, [outputs[step] for outputs, _ in done]) for step in range(len(parts))]
    last = [stacked(b, [ends[i] for _, ends in done]) for i in range(len(starts))]
    results = (stacked(b, rows), *last)
    return results[: node.outputs] if node.outputs > 1 else results[0]


def check(node: OnnxNode, activations: Sequence[str]) -> None:
    """Refuse what an unrolled layer with these activations has no form for."""
    node.only(layout=0, clip=0.0)
    words, expected = stated_activations(node), list(activations) * len(_reverse(node))
    if words and words[: len(expected)] != expected:
        raise node.refusal(f"the activations {words} have no form here, only {expected}")
    lengths = node.constant(_LENGTHS, "lengths of the sequences")
    if lengths is not None and not (lengths == node.shape()[0]).all():
        raise node.refusal("lengths of the sequences have no form here")


def stated_activations(node: OnnxNode) -> list[str]:
    """The activations of all directions in small letters; files may state more than there are."""
    return [word(item).lower() for item in node.attrs.get("activations", ())]


def word(value: Any) -> str:
    """A text attribute, whichever way it is held."""
    return value.decode() if isinstance(value, bytes) else str(value)


def steps(b: Builder, value: Any, count: int) -> list[Value]:
    """The matrices along the first axis."""
    axes = b.constant(np.array([0], np.int64), "axes")
    parts = [value]
    if count > 1:
        sizes = b.constant(np.ones(count, np.int64), "split")
        parts = list(b.add("Split", [value, sizes], {"axis": 0}, outputs=count))
    return [b.add("Squeeze", [part, axes]) for part in parts]


def stacked(b: Builder, values: list[Value]) -> Value:
    """The matrices, one behind the other along a new first axis."""
    axes = b.constant(np.array([0], np.int64), "axes")
    rows = [b.add("Unsqueeze", [value, axes]) for value in values]
    return rows[0] if len(rows) == 1 else b.add("Concat", rows, {"axis": 0})


def split(b: Builder, value: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    """Parts of these sizes along ``axis``."""
    parts = b.constant(np.array(sizes, np.int64), "split")
    return list(b.add("Split", [value, parts], {"axis": axis}, outputs=len(sizes)))


def _reverse(node: OnnxNode) -> tuple[bool, ...]:
    return DIRECTIONS[word(node.attrs.get("direction", "forward"))]


def _directions(b: Builder, node: OnnxNode, gates: int, count: int) -> list[Direction]:
    of_input, of_state = (
        [b.add("Transpose", [part], {"perm": (1, 0)}) for part in steps(b, value, count)]
        for value in node.inputs[1:3]
    )
    biases: list[Any] = [None] * count
    given = node.input(3)
    if given is not None:
        halves = split(b, given, [gates * node.shape(2)[2]] * 2, axis=1)
        biases = list(zip(*(steps(b, half, count) for half in halves), strict=True))
    return [Direction(*parts) for parts in zip(of_input, of_state, biases, strict=True)]


def _starts(b: Builder, node: OnnxNode, places: Sequence[int], count: int) -> list[States]:
    """The first states of each direction, zeros where none is given."""
    batch, hidden = node.shape()[1], node.shape(2)[2]
    found = []
    for place in places:
        given = node.input(place)
        zeros = b.constant(np.zeros((batch, hidden), np.float32), f"zeros{place}")
        found.append([zeros] * count if given is None else steps(b, given, count))
    return [tuple(states) for states in zip(*found, strict=True)]


def _run(
    parts: list[Value], cell: Cell, states: States, backwards: bool
) -> tuple[list[Value], States]:
    """Hidden states in the order of the input, and the last states."""
    outputs = []
    for part in reversed(parts) if backwards else parts:
        states = cell(part, states)
        outputs.append(states[0])
    return (outputs[::-1] if backwards else outputs), states
