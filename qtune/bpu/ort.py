"""The second oracle: ONNX Runtime runs a module through the function bodies of its operators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qtune.errors import RunError
from qtune.hbir.feeding import bind_call, check_feed, outputs_from
from qtune.hbir.module import HbirModule

Array = np.ndarray[Any, Any]


def run_in_onnxruntime(module: HbirModule, *args: Any, **kwargs: Any) -> Any:
    """Run ``module`` as ``module[0](*args, **kwargs)`` does, and return what that returned.

    The arguments are those of the float model (tensors or arrays in its containers), the result is
    torch tensors in the float model's containers. One dict of arrays by input name gives NumPy
    arrays by output name, as ``module[0].feed`` does. Raises ``RunError`` naming the input that
    does not fit.

    Needs the extra ``onnx`` (onnxruntime). Graph optimizations are off: they may reorder float
    arithmetic. A quantized module must give the bits of the call itself.
    """
    import torch

    function = module[0]
    feed = bind_call(function, args, kwargs)
    tensors = check_feed(function, feed)
    names = [item.name for item in function.inputs]
    results = _run(module, {n: t.numpy() for n, t in zip(names, tensors, strict=True)})
    by_name = len(args) == 1 and isinstance(args[0], Mapping) and set(args[0]) == set(names)
    if by_name and not kwargs:
        return results
    leaves = [torch.from_numpy(results[item.name]) for item in function.outputs]
    return outputs_from(function, leaves)


def _run(module: HbirModule, feed: dict[str, Array]) -> dict[str, Array]:
    session = new_session(_without_shapes(module), optimized=False)
    results = session.run(None, feed)
    return {info.name: value for info, value in zip(session.get_outputs(), results, strict=True)}


def new_session(
    model: bytes,
    *,
    optimized: bool = True,
    shared: Mapping[str, Array] | None = None,
    optimized_to: Path | None = None,
) -> Any:
    """An ``InferenceSession`` of one thread on the CPU.

    ``optimized``: all graph optimizations or none. ``shared``: arrays of initializers that the
    model declares as external; onnxruntime may use them in place, so they must not change.
    ``optimized_to``: where the model that the optimizations made is written. Raises ``RunError``
    where onnxruntime is not installed.
    """
    runtime = _onnxruntime()
    levels = runtime.GraphOptimizationLevel
    options = runtime.SessionOptions()
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if optimized_to is not None:
        options.optimized_model_filepath = str(optimized_to)
    if shared:
        values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in shared.values()]
        options.add_external_initializers(list(shared), values)
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        raise RunError(
            "running ONNX models needs the package onnxruntime: install qtune[onnx]"
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
