"""What follows a GEMM with constant weights and is a factor and a number per channel joins it.

Batch norms are folded into weight and bias, in float64; constants that are added become bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from qtune.errors import OnnxImportError
from qtune.hbir.attributes import node_attributes
from qtune.hbir.onnx_import.names import free_name
from qtune.ops.norm.fold import fold_batch_norm

Array = np.ndarray[Any, Any]

_GEMMS = ("Conv", "ConvTranspose", "Gemm")


def fold_batch_norms(graph: ir.Graph) -> None:
    """Fold every batch norm whose input a GEMM makes for it alone; names of outputs stay."""
    for node in list(graph):
        if node.op_type == "BatchNormalization" and not node.domain:
            gemm = _gemm_before(node)
            if gemm is not None:
                _fold(graph, gemm, node)


def fold_biases(graph: ir.Graph) -> None:
    """Constants, one number per channel, that are added to what a GEMM makes for it alone."""
    for node in list(graph):
        if node.op_type != "Add" or node.domain or len(node.inputs) != 2:
            continue
        for index in (0, 1):
            gemm = _gemm_of(node.inputs[index])
            addend = _array(node.inputs[1 - index])
            if gemm is not None and addend is not None and _is_bias(gemm, addend):
                _add_bias(graph, gemm, addend.reshape(-1))
                _take_output(graph, gemm, node)
                break


def _is_bias(gemm: ir.Node, addend: Array) -> bool:
    """Whether ``addend`` has one number for each channel of the GEMM's output, along its axis."""
    shape = gemm.outputs[0].shape
    if shape is None or addend.dtype != np.float32 or addend.ndim > len(shape):
        return False
    axis = 1 if gemm.op_type != "Gemm" else len(shape) - 1
    sizes = [1] * (len(shape) - addend.ndim) + list(addend.shape)
    return sizes == [shape[i] if i == axis else 1 for i in range(len(shape))]


def _add_bias(graph: ir.Graph, gemm: ir.Node, addend: Array) -> None:
    old = _array(gemm.inputs[2]) if len(gemm.inputs) > 2 else None
    wide = np.zeros(1) if old is None else old.reshape(-1)
    total = (wide.astype(np.float64) + addend.astype(np.float64)).astype(np.float32)
    _set(graph, gemm, 2, total, "bias")


def _gemm_before(norm: ir.Node) -> ir.Node | None:
    gemm = _gemm_of(norm.inputs[0])
    if gemm is None:
        return None
    if any(value.uses() or value.is_graph_output() for value in norm.outputs[1:]):
        return None
    known = all(value is None or value.const_value is not None for value in norm.inputs[1:])
    in_eval = not node_attributes(norm).get("training_mode", 0)
    return gemm if known and in_eval else None


def _gemm_of(source: ir.Value | None) -> ir.Node | None:
    """The plain GEMM with constant weight and bias that makes ``source`` for one node alone."""
    gemm = None if source is None else source.producer()
    if source is None or gemm is None or gemm.op_type not in _GEMMS or gemm.domain:
        return None
    if len(list(source.uses())) != 1 or source.is_graph_output():
        return None
    attrs = node_attributes(gemm)
    plain = attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0 and not attrs.get("transA", 0)
    known = all(value is None or value.const_value is not None for value in gemm.inputs[1:])
    flat = gemm.op_type != "Gemm" or len(gemm.inputs) < 3 or _is_flat(gemm)
    return gemm if plain and known and flat else None


def _is_flat(gemm: ir.Node) -> bool:
    """Whether what a Gemm adds is one number per column, or one for all."""
    bias, shape = gemm.inputs[2], gemm.outputs[0].shape
    if bias is None or bias.const_value is None or shape is None:
        return bias is None
    size = bias.const_value.numpy().size
    return size == 1 or (size == shape[-1] and bias.const_value.numpy().shape[-1] == size)


def _fold(graph: ir.Graph, gemm: ir.Node, norm: ir.Node) -> None:
    weight, channels = _constant(gemm.inputs[1]), _constant(norm.inputs[1]).size
    bias = _array(gemm.inputs[2]) if len(gemm.inputs) > 2 else None
    attrs = node_attributes(gemm)
    is_turned = gemm.op_type == "Gemm" and not attrs.get("transB", 0)
    gamma, beta, mean, variance = (_tensor(_array(value)) for value in norm.inputs[1:5])
    flat_bias = None if bias is None else np.broadcast_to(bias.reshape(-1), (channels,))
    new_weight, new_bias = fold_batch_norm(
        torch.from_numpy(np.array(weight.T if is_turned else weight, order="C")),
        _tensor(flat_bias),
        mean=mean,
        variance=variance,
        gamma=gamma,
        beta=beta,
        eps=float(node_attributes(norm).get("epsilon", 1e-5)),
        transposed=gemm.op_type == "ConvTranspose",
        groups=int(attrs.get("group", 1)),
    )
    folded = new_weight.numpy()
    _set(graph, gemm, 1, folded.T if is_turned else folded, "weight")
    _set(graph, gemm, 2, new_bias.numpy(), "bias")
    _take_output(graph, gemm, norm)


def _set(graph: ir.Graph, gemm: ir.Node, index: int, array: Array, role: str) -> None:
    """Give the GEMM a constant of its own, under the name of the one that it replaces alone."""
    old = gemm.inputs[index] if index < len(gemm.inputs) else None
    alone = old is not None and len(list(old.uses())) == 1 and not old.is_graph_output()
    name = old.name if alone and old is not None else _free(graph, f"{gemm.name}.{role}")
    if alone and old is not None and old.name and old.name in graph.initializers:
        gemm.replace_input_with(index, None)
        del graph.initializers[old.name]
    tensor = ir.Tensor(np.ascontiguousarray(array), name=name)
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(list(array.shape)),
        const_value=tensor,
    )
    graph.initializers.add(value)
    if index >= len(gemm.inputs):
        gemm.resize_inputs(index + 1)
    gemm.replace_input_with(index, value)


def _take_output(graph: ir.Graph, gemm: ir.Node, norm: ir.Node) -> None:
    """The GEMM makes what the batch norm made, under that name."""
    made, old = gemm.outputs[0], norm.outputs[0]
    name = old.name
    ir.convenience.replace_all_uses_with(old, made, replace_graph_outputs=True)
    graph.remove(norm, safe=True)
    made.name = name


def _free(graph: ir.Graph, base: str) -> str:
    made = {value.name or "" for node in graph for value in node.outputs}
    return free_name(base, {*made, *graph.initializers, *(v.name or "" for v in graph.inputs)})


def _array(value: ir.Value | None) -> Array | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _constant(value: ir.Value | None) -> Array:
    found = _array(value)
    if found is None:
        raise OnnxImportError(f"{None if value is None else value.name!r} is not constant")
    return found


def _tensor(array: Array | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(np.array(array, order="C"))
