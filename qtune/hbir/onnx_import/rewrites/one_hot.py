"""OneHot: the on value where an axis's index is the given one, else the off value."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder, Value

Array = np.ndarray[Any, Any]


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    depth, values = node.constant(1, "depth"), node.constant(2, "values")
    if depth is None or values is None:
        raise node.refusal("it has no depth or no values")
    if node.dtypes[0] not in ("int64", "int32"):
        raise node.refusal(f"{node.dtypes[0]} indices have no form here, only int32 and int64")
    count, rank = int(depth.reshape(())), len(node.shape()) + 1
    axis = int(node.attrs.get("axis", -1)) % rank
    index = b.add("Unsqueeze", [node.inputs[0], b.constant(np.array([axis], np.int64), "axes")])
    if node.dtypes[0] != "int64":
        index = b.add("AsType", [index], {"to": _INT64}, domain="qtune")
    below = b.add("Less", [index, b.constant(np.array(0, np.int64), "zero")])
    from_end = b.add("Add", [index, b.constant(np.array(count, np.int64), "depth")])
    return marked(b, b.add("Where", [below, from_end, index]), count, axis, rank, values)


_INT64 = 7


def marked(b: Builder, index: Value, count: int, axis: int, rank: int, values: Array) -> Value:
    """``values[1]`` where the place along ``axis`` is ``index`` (size 1 there), else the first."""
    sizes = [count if i == axis else 1 for i in range(rank)]
    places = b.constant(np.arange(count, dtype=np.int64).reshape(sizes), "places")
    off, on = (b.constant(values[i].reshape(()), name) for i, name in enumerate(("off", "on")))
    made: Value = b.add("Where", [b.add("Equal", [index, places]), on, off])
    return made


register_rewrite("OneHot", _rewrite)
