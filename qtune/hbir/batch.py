"""Whether an exported graph runs other batch sizes: it is lowered for another one and compared.

Sizes that the model computes from its inputs become open dimensions where a lowering can say so;
a size that got baked into a constant or an attribute shows as a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from qtune.hbir.attributes import node_attributes
from qtune.hbir.example import Example, TensorFacts


def may_vary(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether all tensors have one common, non-empty first dimension."""
    sizes = {leaf.shape[0] if leaf.dim() else 0 for leaf in leaves}
    return len(sizes) == 1 and 0 not in sizes


def resized(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs with another number of samples: two, or one more where there are up to two."""
    return [leaf[:2] if len(leaf) > 2 else torch.cat([leaf, leaf[:1]]) for leaf in leaves]


def batch_is_free(a: ir.Graph, a_example: Example, b: ir.Graph, b_example: Example) -> bool:
    """Whether graph ``b``, lowered for another batch size, equals ``a`` and mixes no samples."""
    return _same_nodes(a, b) and _same_constants(a, b) and _keeps_samples(a_example, b_example)


def _same_nodes(a: ir.Graph, b: ir.Graph) -> bool:
    if len(a) != len(b):
        return False
    return all(_signature(x) == _signature(y) for x, y in zip(a, b, strict=True))


def _signature(node: ir.Node) -> tuple[Any, ...]:
    attributes = {
        key: (value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, np.ndarray)
        else value
        for key, value in node_attributes(node).items()
    }
    inputs = tuple(None if value is None else value.name for value in node.inputs)
    return node.domain, node.op_type, inputs, attributes


def _same_constants(a: ir.Graph, b: ir.Graph) -> bool:
    if set(a.initializers) != set(b.initializers):
        return False
    return all(_equal(value, b.initializers[name]) for name, value in a.initializers.items())


def _equal(a: ir.Value, b: ir.Value) -> bool:
    if a.const_value is None or b.const_value is None:
        return False
    x, y = a.const_value.numpy(), b.const_value.numpy()
    return x.dtype == y.dtype and np.array_equal(x, y)


def _keeps_samples(a: Example, b: Example) -> bool:
    """Whether what is made from tensors that follow the batch follows it too: no mean over it."""
    for node, fact in a.facts.items():
        if node.op == "placeholder" or not isinstance(fact, TensorFacts) or fact.data is not None:
            continue
        if any(_varies(value, a, b) for value in node.all_input_nodes) and not _varies(node, a, b):
            return False
    return True


def _varies(node: fx.Node, a: Example, b: Example) -> bool:
    return bool(_shapes(a.facts[node]) != _shapes(b.facts[node]))


def _shapes(fact: Any) -> Any:
    if isinstance(fact, tuple):
        return tuple(_shapes(item) for item in fact)
    return fact.shape if isinstance(fact, TensorFacts) else None
