"""Models of one node or a few, compared with onnxruntime and onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qtune.hbir.onnx_import import import_onnx

Array = np.ndarray[Any, Any]

make = helper.make_node
CONTRIB = "com.microsoft"


def model_of(
    nodes: onnx.NodeProto | Sequence[onnx.NodeProto],
    x: Array,
    constants: Mapping[str, Any] | None = None,
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 21,
    elements: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model with the input ``x``; shapes of outputs are those that onnxruntime gives."""
    listed = [nodes] if isinstance(nodes, onnx.NodeProto) else list(nodes)
    graph = helper.make_graph(
        listed,
        "one",
        [helper.make_tensor_value_info("x", elements, x.shape)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(c), name) for name, c in (constants or {}).items()],
    )
    domains = sorted({node.domain for node in listed} - {""})
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def by_onnxruntime(proto: onnx.ModelProto, x: Array) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(result) for result in session.run(None, {"x": x})]


def stated(proto: onnx.ModelProto, results: Sequence[Array]) -> onnx.ModelProto:
    """``proto``, changed in place, with the types of its results."""
    for info, result in zip(proto.graph.output, results, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(result.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, result.shape))
    return proto


def assert_like_onnxruntime(
    proto: onnx.ModelProto, x: Array, *, rtol: float = 1e-5, atol: float = 2e-6
) -> list[Array]:
    """Compare all results; the tolerances are those of float32 sums in another order."""
    expected = by_onnxruntime(proto, x)
    got = [np.asarray(result) for result in import_onnx(stated(proto, expected))(x)]
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
    return got


def assert_like_both(proto: onnx.ModelProto, x: Array, *, atol: float = 2e-6) -> None:
    """As :func:`assert_like_onnxruntime`, and like onnx's reference evaluator."""
    got = assert_like_onnxruntime(proto, x, atol=atol)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)
