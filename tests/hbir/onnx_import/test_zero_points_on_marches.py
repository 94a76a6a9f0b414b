"""Codes less a zero point count as int8 for a march's GEMMs, with the arithmetic of all marches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from qtune.bpu import compiler
from qtune.bpu.ort import run_in_onnxruntime
from qtune.hbir.module import HbirModule

from .quantized_files import Array, graph_of, samples

SHAPE = (2, 3, 4)


def _pair(source: str, target: str) -> list[onnx.NodeProto]:
    grid = [f"s_{target}", f"z_{target}"]
    return [
        helper.make_node("QuantizeLinear", [source, *grid], [f"{target}_q"], name=f"q_{target}"),
        helper.make_node("DequantizeLinear", [f"{target}_q", *grid], [target], name=f"d_{target}"),
    ]


def _product(point_of_b: int) -> onnx.ModelProto:
    """``transpose(q(x)) @ q(x + 1)``: the first factor has zero point -7."""
    nodes = [
        *_pair("x", "a"),
        helper.make_node("Add", ["x", "one"], ["x1"], name="plus"),
        *_pair("x1", "b"),
        helper.make_node("Transpose", ["a"], ["at"], name="turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["at", "b"], ["m"], name="mm"),
        *_pair("m", "y"),
    ]
    scales = {"a": (0.02, -7), "b": (0.025, point_of_b), "y": (0.1, -20)}
    constants = {f"s_{k}": np.asarray(s, np.float32) for k, (s, _) in scales.items()}
    constants |= {f"z_{k}": np.asarray(z, np.int8) for k, (_, z) in scales.items()}
    constants["one"] = np.full(1, 1.0, np.float32)
    return graph_of(nodes, SHAPE, constants, result=(2, 4, 4))


def _integers(module: HbirModule, x: Array) -> Array:
    fast = module[0].run({"x": x})["y"].numpy()
    np.testing.assert_array_equal(fast, module[0].run({"x": x}, mode="reference")["y"].numpy())
    np.testing.assert_array_equal(fast, run_in_onnxruntime(module, {"x": x})["y"])
    return np.asarray(fast)


@pytest.mark.parametrize("march", ["bayes", "bayes-e", "nash-e", "nash-b"])
@pytest.mark.parametrize("point", [-128, 0, 11, 127])
def test_a_product_of_two_activations_with_zero_points_runs(
    march: str, point: int, tmp_path: Path
) -> None:
    path = tmp_path / "product.onnx"
    onnx.save(_product(point), path)
    x = samples(SHAPE, 5)
    module = compiler.convert(compiler.load(path), march)
    (node,) = [n for n in module.model.graph if n.op_type.startswith("QMatMul")]
    assert node.op_type == ("QMatMul16x16" if point else "QMatMul16x8")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    steps = np.abs(_integers(module, x) - expected) / 0.1
    assert steps.max() <= 1 + 1e-3  # a tie: half even in float32 there, half up of integers here
    assert (steps < 0.5).mean() > 0.95
    assert float(np.abs(expected).max()) > 1, "the product isn't small"


@pytest.mark.parametrize("march", ["bernoulli2", "bayes"])
def test_a_convolution_of_codes_with_a_zero_point_runs_on_an_int8_march(
    march: str, tmp_path: Path
) -> None:
    weight = np.random.default_rng(2).integers(-127, 128, (5, 3, 2, 2)).astype(np.int8)
    nodes = [
        *_pair("x", "a"),
        helper.make_node("DequantizeLinear", ["w_q", "s_w"], ["w"], name="weight"),
        helper.make_node("Conv", ["a", "w"], ["c"], name="conv"),
        *_pair("c", "y"),
    ]
    numbers = {"s_a": 0.02, "s_w": 0.01, "s_y": 0.05}
    constants = {k: np.asarray(v, np.float32) for k, v in numbers.items()}
    constants |= {"z_a": np.asarray(-9, np.int8), "z_y": np.asarray(14, np.int8), "w_q": weight}
    path = tmp_path / "conv.onnx"
    onnx.save(graph_of(nodes, (2, 3, 6, 6), constants, result=(2, 5, 5, 5)), path)
    x, module = samples((2, 3, 6, 6), 8), compiler.load(path)
    codes = np.clip(np.rint(x / np.float32(0.02)), -119, 136).astype(np.int64)
    patches = np.lib.stride_tricks.sliding_window_view(codes, (2, 2), (2, 3))
    sums = np.einsum("nchwij,ocij->nohw", patches, weight.astype(np.int64))
    expected = np.clip(np.floor(sums * (0.02 * 0.01 / 0.05) + 0.5), -142, 113) * 0.05
    got = _integers(compiler.convert(module, march), x)
    # The multiplier has 15 bits: 2**-15 of at most 142 steps, so only a tie may fall otherwise.
    assert (np.abs(got - expected) < 1e-5).mean() > 0.99
    assert np.abs(got - expected).max() < 0.05 + 1e-5
