"""ScatterND and ScatterElements with constant indices: a Gather from the data and the updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.places import places_of, replaced
from qtune.ops.kernel import Builder

Array = np.ndarray[Any, Any]


def _scatter_nd(b: Builder, node: OnnxNode) -> Any:
    indices, shape = _indices(node), node.shape()
    places = places_of((1, *shape), indices[None])
    return replaced(b, node.inputs[0], node.inputs[2], places, shape)


def _scatter_elements(b: Builder, node: OnnxNode) -> Any:
    indices, shape = _indices(node), node.shape()
    axis = int(node.attrs.get("axis", 0)) % len(shape)
    where: list[Array] = list(np.indices(indices.shape))
    where[axis] = indices % shape[axis]
    places = np.ravel_multi_index(tuple(where), shape)
    return replaced(b, node.inputs[0], node.inputs[2], places, shape)


def _indices(node: OnnxNode) -> Array:
    node.only(reduction="none")
    indices = node.constant(1, "indices")
    if indices is None:
        raise node.refusal("it has no indices")
    return indices


register_rewrite("ScatterND", _scatter_nd)
register_rewrite("ScatterElements", _scatter_elements)
