"""The second oracle: ONNX Runtime runs a module through the function bodies of its operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from qtune.errors import RunError
from qtune.hbir.module import HbirModule

Array = np.ndarray[Any, Any]


def run_in_onnxruntime(module: HbirModule, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Run ``module`` on arrays by input name; return NumPy arrays by output name.

    Needs the extra ``onnx`` (onnxruntime). Graph optimizations are off: they may reorder float
    arithmetic. A quantized module must give the bits of ``module[0].feed(inputs)``.
    """
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        _without_shapes(module), options, providers=["CPUExecutionProvider"]
    )
    feed = {name: np.asarray(value) for name, value in inputs.items()}
    results = session.run(None, feed)
    return {info.name: value for info, value in zip(session.get_outputs(), results, strict=True)}


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        raise RunError(
            "running a module in ONNX Runtime needs the package onnxruntime: install qtune[onnx]"
        ) from None
    return onnxruntime


def _without_shapes(module: HbirModule) -> bytes:
    """The file; with an open batch, without the sizes that the example's batch had."""
    data = module.to_bytes()
    if not module[0].open_batch:
        return data
    proto = onnx.load_model_from_string(data)
    del proto.graph.value_info[:]
    for info in (*proto.graph.input, *proto.graph.output):
        shape = info.type.tensor_type.shape
        if shape.dim:
            shape.dim[0].ClearField("dim_value")
    return bytes(proto.SerializeToString())
