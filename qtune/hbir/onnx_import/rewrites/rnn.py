"""RNN with tanh or relu: one set of float operators for each step of each direction."""

from __future__ import annotations

from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.recurrent import (
    Cell,
    Direction,
    check,
    stated_activations,
    unrolled,
)
from qtune.ops.kernel import Builder

ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu"}


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    name = next(iter(stated_activations(node)), "tanh")
    check(node, [name if name in ACTIVATIONS else "tanh"])
    return unrolled(b, node, 1, (5,), lambda of: _cell_of(b, of, ACTIVATIONS[name]))


def _cell_of(b: Builder, of: Direction, activation: str) -> Cell:
    bias = of.bias(b)

    def cell(x: Any, states: Any) -> Any:
        products = [b.add("MatMul", [x, of.of_input]), b.add("MatMul", [states[0], of.of_state])]
        total = b.add("Add", products)
        if bias is not None:
            total = b.add("Add", [total, bias])
        return (b.add(activation, [total]),)

    return cell


register_rewrite("RNN", _rewrite)
