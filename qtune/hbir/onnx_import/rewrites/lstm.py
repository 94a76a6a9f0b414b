"""LSTM: one set of float operators for each step of each direction."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.recurrent import Cell, Direction, check, split, unrolled
from qtune.ops.kernel import Builder

ACTIVATIONS = ("sigmoid", "tanh", "tanh")
_GATES = 4
"""In ONNX's order: input, output, forget, cell."""
_PEEPHOLES = 7


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    node.only(input_forget=0)
    check(node, ACTIVATIONS)
    peepholes = node.constant(_PEEPHOLES, "peephole weights")
    if peepholes is not None and peepholes.any():
        raise node.refusal("peephole weights have no form here")
    hidden_size = node.shape(2)[2]

    def cell_of(of: Direction) -> Cell:
        bias = of.bias(b)

        def cell(x: Any, states: Any) -> Any:
            hidden, memory = states
            total = b.add(
                "Add", [b.add("MatMul", [x, of.of_input]), b.add("MatMul", [hidden, of.of_state])]
            )
            if bias is not None:
                total = b.add("Add", [total, bias])
            parts = split(b, total, [hidden_size] * _GATES, axis=1)
            enter, leave, keep = (b.add("Sigmoid", [part]) for part in parts[:3])
            fresh = b.add("Mul", [enter, b.add("Tanh", [parts[3]])])
            memory = b.add("Add", [b.add("Mul", [keep, memory]), fresh])
            return b.add("Mul", [leave, b.add("Tanh", [memory])]), memory

        return cell

    return unrolled(b, node, _GATES, (5, 6), cell_of)


register_rewrite("LSTM", _rewrite)
