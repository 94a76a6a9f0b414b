"""Standard ONNX operators that are composed operators of the registry, as calls of those.

Others come from the rewrites of the import, which say which operator of the registry they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode
from qtune.ops.gemm.einsum import refuse_diagonals
from qtune.ops.kernel import Builder, LowerCall

Call = tuple[str, LowerCall]
"""Name of the registry's operator, and the call."""


def may_be_call(op_type: str) -> bool:
    """Whether :func:`call_of` knows nodes of the type."""
    return op_type in _CALLS


def call_of(b: Builder, node: OnnxNode) -> Call | None:
    """``node`` as a call; ``None`` where it is none of a composed operator."""
    make = _CALLS.get(node.op_type)
    return None if make is None or node.dtypes[0] != "float32" else make(b, node)


def _call(
    node: OnnxNode, operator: str, operands: tuple[Any, ...], attrs: Mapping[str, Any]
) -> Call:
    """Operands are numbers of inputs, or Python's numbers as floats."""
    places = [item if isinstance(item, int) else None for item in operands]
    values = (
        number if place is None else node.inputs[place]
        for number, place in zip(operands, places, strict=True)
    )
    shapes = tuple(None if place is None else node.shape(place) for place in places)
    dtypes = tuple(None if place is None else node.dtypes[place] for place in places)
    output = node.output_shapes[0] or ()
    return operator, LowerCall(node.name, tuple(values), attrs, shapes, output, dtypes)


def _softmax(operator: str) -> Callable[[Builder, OnnxNode], Call]:
    def make(b: Builder, node: OnnxNode) -> Call:
        return _call(node, operator, (0,), {"dim": int(node.attrs.get("axis", -1)), "dtype": None})

    return make


def _log_sum_exp(b: Builder, node: OnnxNode) -> Call | None:
    axes = node.constant(1, "axes")
    if axes is None or not axes.size:
        if node.attrs.get("noop_with_empty_axes", 0):
            return None
        axes = np.arange(len(node.shape()))
    dims = tuple(int(axis) for axis in axes)
    keepdim = bool(node.attrs.get("keepdims", 1))
    return _call(node, "logsumexp", (0,), {"dim": dims, "keepdim": keepdim})


def _div(b: Builder, node: OnnxNode) -> Call | None:
    """By a tensor; a constant is inverted in float, so that one product is left."""
    if _number(node, 1) is not None:
        return None
    divisor = node.constants[1]
    if divisor is None:
        numerator = _number(node, 0)
        return _call(node, "div", (0 if numerator is None else numerator, 1), {})
    if not np.isfinite(inverse := _inverse(divisor)).all():
        return None
    operator, call = _call(node, "div", (0, 1), {})
    factor = b.constant(inverse, "inverse")
    return "mul", LowerCall(
        call.name, (call.operands[0], factor), {}, call.input_shapes, call.output_shape
    )


def _inverse(divisor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(1 / divisor.astype(np.float64), np.float32)


def _einsum(b: Builder, node: OnnxNode) -> Call:
    equation = node.attrs["equation"]
    refuse_diagonals(equation)
    return _call(node, "einsum", tuple(range(len(node.inputs))), {"equation": equation})


def _number(node: OnnxNode, index: int) -> float | None:
    """A constant of one element that no shape shows of."""
    array = node.constants[index]
    other = node.shapes[1 - index]
    if array is None or array.size != 1 or other is None or array.ndim > len(other):
        return None
    return float(array.reshape(()))


_CALLS: Mapping[str, Callable[[Builder, OnnxNode], Call | None]] = MappingProxyType(
    {
        "Softmax": _softmax("softmax"),
        "LogSoftmax": _softmax("log_softmax"),
        "ReduceLogSumExp": _log_sum_exp,
        "Div": _div,
        "Einsum": _einsum,
    }
)
