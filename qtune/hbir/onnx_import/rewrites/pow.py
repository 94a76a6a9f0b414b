"""Pow with a number: the one operator that the registry's pow becomes (a product, a table)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from qtune.hbir.onnx_import.form import OnnxNode, emit, register_rewrite
from qtune.ops.composed import lower_by_parts
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.registry import spec


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    decompose = spec("pow").decompose
    if node.dtypes[0] != "float32":
        raise node.refusal(f"{node.dtypes[0]} operands have no form here, only float32")
    if decompose is None or set(node.dtypes) - {"float32", "int64", "int32"}:
        return emit(b, node)
    operands = tuple(_operand(node, index) for index in (0, 1))
    if all(not isinstance(item, float) for item in operands):
        return emit(b, node)
    shapes = tuple(
        None if isinstance(item, float) else node.shape(index)
        for index, item in enumerate(operands)
    )
    call = LowerCall(node.name, operands, {}, shapes, node.output_shapes[0] or (), node.dtypes)
    with suppress(NotImplementedError):
        return lower_by_parts(decompose)(b, call)
    return emit(b, node)


def _operand(node: OnnxNode, index: int) -> Any:
    """A value, or the number that a constant of one element is where no shape shows of it."""
    array, other = node.constants[index], node.shapes[1 - index]
    is_number = array is not None and array.size == 1 and array.ndim <= len(other or ())
    return float(array.reshape(())) if array is not None and is_number else node.inputs[index]


register_rewrite("Pow", _rewrite)
