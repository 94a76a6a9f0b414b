"""LSTM: one set of float operators for each step of each direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder, Value

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Whether each direction of the attribute runs backwards."""
ACTIVATIONS = ("sigmoid", "tanh", "tanh")


@dataclass(frozen=True, slots=True)
class _Direction:
    """Matrices as MatMul takes them, gates in ONNX's order: input, output, forget, cell.

    ``gates``: the sizes of the four.
    """

    of_input: Value
    of_state: Value
    bias: Value | None
    gates: Value
    is_reversed: bool


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    _check(node)
    steps = _steps(b, node.inputs[0], node.shape()[0])
    directions = _directions(b, node)
    states = _starts(b, node, len(directions))
    done = [_run(b, steps, of, *state) for of, state in zip(directions, states, strict=True)]
    rows = [_stacked(b, [outputs[step] for outputs, _, _ in done]) for step in range(len(steps))]
    results = (
        _stacked(b, rows),
        _stacked(b, [hidden for _, hidden, _ in done]),
        _stacked(b, [cell for _, _, cell in done]),
    )
    return results[: node.outputs] if node.outputs > 1 else results[0]


def _check(node: OnnxNode) -> None:
    node.only(layout=0, input_forget=0, clip=0.0)
    words = [_word(word).lower() for word in node.attrs.get("activations", ())]
    expected = list(ACTIVATIONS) * len(DIRECTIONS[_word(node.attrs.get("direction", "forward"))])
    if words and words != expected:
        raise node.refusal(f"the activations {words} have no form here, only {expected}")
    for index, what in ((4, "lengths of the sequences"), (7, "peephole weights")):
        array = node.constant(index, what)
        is_plain = array is None or (array == (0 if index == 7 else node.shape()[0])).all()
        if not is_plain:
            raise node.refusal(f"{what} have no form here")


def _word(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _directions(b: Builder, node: OnnxNode) -> list[_Direction]:
    reverse = DIRECTIONS[_word(node.attrs.get("direction", "forward"))]
    gates = b.constant(np.full(4, node.shape(2)[2], np.int64), "split")
    of_input, of_state = (
        [b.add("Transpose", [part], {"perm": (1, 0)}) for part in _steps(b, value, len(reverse))]
        for value in node.inputs[1:3]
    )
    biases: list[Any] = [None] * len(reverse)
    if node.input(3) is not None:
        halves = b.constant(np.full(2, 4 * node.shape(2)[2], np.int64), "split")
        pairs = b.add("Split", [node.inputs[3], halves], {"axis": 1}, outputs=2)
        biases = _steps(b, b.add("Add", list(pairs)), len(reverse))
    return [
        _Direction(of_input[index], of_state[index], biases[index], gates, is_reversed)
        for index, is_reversed in enumerate(reverse)
    ]


def _starts(b: Builder, node: OnnxNode, directions: int) -> list[list[Value]]:
    """Hidden and cell state of each direction, zeros where none is given."""
    batch, hidden = node.shape()[1], node.shape(2)[2]
    found = []
    for place in (5, 6):
        given = node.input(place)
        zeros = b.constant(np.zeros((batch, hidden), np.float32), f"zeros{place}")
        found.append([zeros] * directions if given is None else _steps(b, given, directions))
    return [[found[0][index], found[1][index]] for index in range(directions)]


def _steps(b: Builder, value: Any, count: int) -> list[Value]:
    """The matrices along the first axis."""
    axes = b.constant(np.array([0], np.int64), "axes")
    parts = [value]
    if count > 1:
        sizes = b.constant(np.ones(count, np.int64), "split")
        parts = list(b.add("Split", [value, sizes], {"axis": 0}, outputs=count))
    return [b.add("Squeeze", [part, axes]) for part in parts]


def _run(
    b: Builder, steps: list[Value], of: _Direction, hidden: Value, cell: Value
) -> tuple[list[Value], Value, Value]:
    """Hidden states in the order of the input, the last hidden and the last cell state."""
    outputs = []
    for step in reversed(steps) if of.is_reversed else steps:
        hidden, cell = _cell(b, step, of, hidden, cell)
        outputs.append(hidden)
    return (outputs[::-1] if of.is_reversed else outputs), hidden, cell


def _cell(b: Builder, x: Value, of: _Direction, hidden: Value, cell: Value) -> tuple[Value, Value]:
    products = [b.add("MatMul", [x, of.of_input]), b.add("MatMul", [hidden, of.of_state])]
    total = b.add("Add", products)
    if of.bias is not None:
        total = b.add("Add", [total, of.bias])
    parts = b.add("Split", [total, of.gates], {"axis": 1}, outputs=4)
    enter, leave, keep = (b.add("Sigmoid", [part]) for part in parts[:3])
    fresh = b.add("Mul", [enter, b.add("Tanh", [parts[3]])])
    cell = b.add("Add", [b.add("Mul", [keep, cell]), fresh])
    return b.add("Mul", [leave, b.add("Tanh", [cell])]), cell


def _stacked(b: Builder, values: list[Value]) -> Value:
    axes = b.constant(np.array([0], np.int64), "axes")
    rows = [b.add("Unsqueeze", [value, axes]) for value in values]
    return rows[0] if len(rows) == 1 else b.add("Concat", rows, {"axis": 0})


register_rewrite("LSTM", _rewrite)
