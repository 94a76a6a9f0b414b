"""Small HBIR modules made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx_ir as ir

from qtune.hbir.builder import META_STAGE, GraphBuilder, mark_result
from qtune.hbir.module import META_INPUTS, META_OUTPUTS, HbirModule


def relu_module(
    shape: Sequence[int] = (2, 3), *, arguments: object = None, results: object = None
) -> HbirModule:
    """``relu2(relu1(x))`` as a qat module; the containers default to one positional tensor."""
    builder = GraphBuilder()
    x = builder.input("_input_0", ir.DataType.FLOAT, shape)
    for name in ("relu1", "relu2"):
        with builder.emitting_for(name):
            x = builder.add("Relu", [x])
            mark_result(x, name, name)
    builder.output(x, "_output_0")
    inputs = arguments or {"dict": [["args", {"tuple": [{"leaf": 0}]}], ["kwargs", {"dict": []}]]}
    metadata = {
        META_STAGE: "qat",
        META_INPUTS: json.dumps(inputs),
        META_OUTPUTS: json.dumps(results or {"leaf": 0}),
    }
    return HbirModule(builder.finish(metadata))
