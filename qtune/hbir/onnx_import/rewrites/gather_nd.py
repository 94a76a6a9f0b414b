"""GatherND with constant indices: one Gather from the flat tensor."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.places import flat, places_of
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    shape, indices = node.shape(), node.constant(1, "indices")
    if indices is None:
        raise node.refusal("it has no indices")
    batch = int(node.attrs.get("batch_dims", 0))
    lead = shape[:batch]
    rows = indices.reshape(prod(lead), *indices.shape[batch:])
    places = places_of((prod(lead), *shape[batch:]), rows)
    found = b.constant(places.reshape(node.output_shapes[0] or ()).astype(np.int64), "places")
    return b.add("Gather", [flat(b, node.inputs[0]), found], {"axis": 0})


register_rewrite("GatherND", _rewrite)
