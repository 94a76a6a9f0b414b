"""GRU: one set of float operators for each step of each direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.recurrent import Cell, Direction, check, split, unrolled
from qtune.ops.kernel import Builder

ACTIVATIONS = ("sigmoid", "tanh")
_GATES = 3
"""In ONNX's order: update, reset, hidden."""


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    check(node, ACTIVATIONS)
    linear = bool(node.attrs.get("linear_before_reset", 0))
    return unrolled(b, node, _GATES, (5,), lambda of: _cell_of(b, of, node.shape(2)[2], linear))


def _cell_of(b: Builder, of: Direction, size: int, linear_before_reset: bool) -> Cell:
    """With ``linear_before_reset`` the reset gate multiplies the product, else the state."""
    sizes = [2 * size, size]
    of_gates, of_hidden = split(b, of.of_state, sizes, axis=1)
    one = b.constant(np.array(1, dtype=np.float32), "one")
    bias_x, bias_h = of.biases if of.biases is not None else (None, None)
    gate_bias, hidden_bias = (None, None) if bias_h is None else split(b, bias_h, sizes, axis=0)

    def plus(value: Any, bias: Any) -> Any:
        return value if bias is None else b.add("Add", [value, bias])

    def cell(x: Any, states: Any) -> Any:
        (hidden,) = states
        from_input = plus(b.add("MatMul", [x, of.of_input]), bias_x)
        gates_x, hidden_x = split(b, from_input, sizes, axis=1)
        gates_h = plus(b.add("MatMul", [hidden, of_gates]), gate_bias)
        gates = b.add("Sigmoid", [b.add("Add", [gates_x, gates_h])])
        update, reset = split(b, gates, [size, size], axis=1)
        if linear_before_reset:
            product = plus(b.add("MatMul", [hidden, of_hidden]), hidden_bias)
            part = b.add("Mul", [reset, product])
        else:
            kept = b.add("Mul", [reset, hidden])
            part = plus(b.add("MatMul", [kept, of_hidden]), hidden_bias)
        fresh = b.add("Tanh", [b.add("Add", [hidden_x, part])])
        new = b.add("Mul", [b.add("Sub", [one, update]), fresh])
        return (b.add("Add", [new, b.add("Mul", [update, hidden])]),)

    return cell


register_rewrite("GRU", _rewrite)
