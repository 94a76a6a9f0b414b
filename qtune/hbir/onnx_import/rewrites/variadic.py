"""Max, Min, Sum and Mean of any number of operands, as chains of two."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _chain(op_type: str, b: Builder, node: OnnxNode) -> Any:
    if len(node.inputs) == 1:
        return b.add("Identity", [node.inputs[0]])
    return reduce(lambda left, right: b.add(op_type, [left, right]), node.inputs)


def _max(b: Builder, node: OnnxNode) -> Any:
    return _chain("Max", b, node)


def _min(b: Builder, node: OnnxNode) -> Any:
    return _chain("Min", b, node)


def _sum(b: Builder, node: OnnxNode) -> Any:
    return _chain("Add", b, node)


def _mean(b: Builder, node: OnnxNode) -> Any:
    count = b.constant(np.array(len(node.inputs), dtype=np.float32), "count")
    return b.add("Div", [_chain("Add", b, node), count])


register_rewrite("Max", _max)
register_rewrite("Min", _min)
register_rewrite("Sum", _sum)
register_rewrite("Mean", _mean)
