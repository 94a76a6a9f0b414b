"""Operators that move elements carry codes, exactly; whole builds of the others run on integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtune.bpu import compiler
from qtune.bpu.ort import run_in_onnxruntime
from qtune.hbir.module import HbirModule
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug import BuildResult, build_model

from .single_nodes import by_onnxruntime, make, model_of, normal, stated

Array = np.ndarray[Any, Any]
GRID = {"s": np.array(0.02, np.float32), "z": np.array(0, np.int8)}
ENDS = ("Quantize", "QuantizeHalfEven", "Dequantize")


def between_pairs(node: onnx.NodeProto, shape: Sequence[int], constants: Any) -> Array:
    """What the integers of a QDQ file give; on every path the same, and as onnxruntime the file."""
    x = normal(*shape)
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node,
        make("QuantizeLinear", ["r", "s", "z"], ["rq"]),
        make("DequantizeLinear", ["rq", "s", "z"], ["y"]),
    ]
    proto = model_of(nodes, x, {**GRID, **constants})
    expected = by_onnxruntime(proto, x)
    integers = compiler.convert(import_onnx(stated(proto, expected)), "nash-e")
    (got,) = integers[0].feed({"x": x}).values()
    np.testing.assert_array_equal(got, expected[0])
    assert_all_paths_agree(integers, x)
    inner = [n.op_type for n in integers.model.graph][1:-1]
    assert not set(inner) & set(ENDS)
    return np.asarray(got)


def assert_all_paths_agree(integers: HbirModule, x: Array) -> None:
    (fast,) = integers[0].feed({"x": x}).values()
    (exact,) = integers[0].run({"x": x}, mode="reference").values()
    (by_ort,) = run_in_onnxruntime(integers, {"x": x}).values()
    np.testing.assert_array_equal(fast, exact.numpy())
    np.testing.assert_array_equal(fast, by_ort)


def codes(shape: Sequence[int]) -> Array:
    return np.clip(np.rint(normal(*shape) / np.float32(0.02)), -128, 127)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_carries_codes(mode: str) -> None:
    node = make("DepthToSpace", ["d"], ["r"], blocksize=2, mode=mode)
    got = between_pairs(node, (1, 8, 3, 4), {})
    split = (1, 2, 2, 2, 3, 4)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    moved = codes((1, 8, 3, 4)).reshape(split).transpose(order).reshape(1, 2, 6, 8)
    np.testing.assert_array_equal(got, moved * np.float32(0.02))


def test_space_to_depth_carries_codes() -> None:
    between_pairs(make("SpaceToDepth", ["d"], ["r"], blocksize=2), (2, 3, 4, 6), {})


@pytest.mark.parametrize("scale", [1.5, 0.5])
@pytest.mark.parametrize("rounding", ["ceil", "round_prefer_floor"])
def test_a_nearest_resize_of_any_rule_carries_codes(rounding: str, scale: float) -> None:
    node = make("Resize", ["d", "", "n"], ["r"], nearest_mode=rounding,
                coordinate_transformation_mode="asymmetric")  # fmt: skip
    between_pairs(node, (1, 2, 4, 6), {"n": np.array([1, 1, scale, scale], np.float32)})


def test_a_max_pool_of_rows_carries_codes() -> None:
    between_pairs(make("MaxPool", ["d"], ["r"], kernel_shape=[3], pads=[1, 0]), (1, 3, 9), {})


def test_gathers_and_scatters_by_constant_indices_carry_codes() -> None:
    places = np.array([[0, 1], [2, -1]], np.int64)
    between_pairs(make("GatherND", ["d", "i"], ["r"]), (3, 4, 5), {"i": places})
    updates = np.clip(normal(2, 5, seed=3), -2, 2)
    step = np.float32(0.02)
    constants = {"i": places, "u": np.rint(updates / step) * step}
    nodes = make("ScatterND", ["d", "i", "u"], ["r"])
    x = normal(3, 4, 5)
    proto = model_of([nodes], x, constants)
    proto.graph.node[0].input[0], proto.graph.node[0].output[0] = "x", "y"
    np.testing.assert_array_equal(
        np.asarray(import_onnx(stated(proto, by_onnxruntime(proto, x)))(x)[0])[0, 1],
        constants["u"][0],
    )


def conv(source: str, result: str, weight: str) -> onnx.NodeProto:
    return make("Conv", [source, weight], [result], result, pads=[1, 1, 1, 1])


def norm(op_type: str, *extra: str, **attrs: Any) -> Sequence[onnx.NodeProto]:
    return [conv("x", "c", "w"), make(op_type, ["c", *extra], ["n"], "node", **attrs),
            conv("n", "y", "v")]  # fmt: skip


def weights(*shape: int, seed: int) -> Array:
    return normal(*shape, seed=seed) * np.float32(0.3)


CONVS = {"w": weights(4, 3, 3, 3, seed=1), "v": weights(4, 4, 3, 3, seed=2)}
CHANNELS = {"a": normal(4, seed=3), "b": normal(4, seed=4)}
HALVES = {"r": np.array([1, 1, 1.5, 1.5], np.float32)}
QK = [
    make("MatMul", ["x", "w"], ["q"], "q"),
    make("MatMul", ["x", "v"], ["k"], "k"),
    make("Einsum", ["q", "k"], ["n"], "node", equation="bqhd,bkhd->bhqk"),
    make("MatMul", ["n", "u"], ["y"], "y"),
]
CASES: dict[str, tuple[Sequence[onnx.NodeProto], tuple[int, ...], dict[str, Array], str]] = {
    "instance norm": (norm("InstanceNormalization", "a", "b"), (1, 3, 8, 8), {**CONVS, **CHANNELS},
                      "Lut16"),
    "group norm": (norm("GroupNormalization", "a", "b", num_groups=2), (1, 3, 8, 8),
                   {**CONVS, **CHANNELS}, "Lut16"),
    "mish": (norm("Mish"), (1, 3, 8, 8), CONVS, "Lut8"),
    "gelu": (norm("Gelu", approximate="tanh"), (1, 3, 8, 8), CONVS, "Lut8"),
    "thresholded relu": (norm("ThresholdedRelu", alpha=0.5), (1, 3, 8, 8), CONVS, "Lut8"),
    "average of uneven pads": (norm("AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1,
                                    pads=[0, 0, 1, 1]), (1, 3, 9, 9), CONVS, "QAvgPool"),
    "bilinear": (norm("Resize", "", "r", mode="linear"), (1, 3, 8, 8), {**CONVS, **HALVES},
                 "QResizeBilinear"),
    "bilinear of another rule": (norm("Resize", "", "r", mode="linear",
                                      coordinate_transformation_mode="asymmetric"), (1, 3, 8, 8),
                                 {**CONVS, **HALVES}, "QMatMul"),
    "einsum": (QK, (1, 6, 2, 8), {"w": weights(8, 8, seed=1), "v": weights(8, 8, seed=2),
                                  "u": weights(6, 4, seed=3)}, "QMatMul"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_build_runs_it_on_integers(case: str) -> None:
    nodes, shape, constants, kernel = CASES[case]
    data = [normal(*shape, seed=seed) for seed in range(3)]
    proto = model_of(nodes, data[0], constants)
    expected = by_onnxruntime(proto, data[0])[0]
    result = build_model(
        stated(proto, [expected]),
        march="nash-e",
        cali_data=data,
        quant_config={"model_config": {"activation": {"calibration_type": "max"}}},
        save_model=False,
        return_builder=True,
        verbose=False,
    )
    assert isinstance(result, BuildResult)
    integers = result.quantized
    kinds = [node.op_type for node in integers.model.graph]
    assert kernel in kinds
    assert kinds.count("Dequantize") + kinds.count("DequantizeAcc") == 1  # nothing in between
    assert_all_paths_agree(integers, data[0])
    (got,) = integers[0].feed({"x": data[0]}).values()
    # int8 in three layers leaves 0.999; near the jump of a thresholded relu one step decides more
    assert (got * expected).sum() > 0.997 * np.linalg.norm(got) * np.linalg.norm(expected)


def test_a_calibration_behind_a_shuffle_is_one_before_it() -> None:
    x = normal(1, 3, 4, 4)
    grid = {"scales": [0.05], "thresholds": [6.4], "bits": 8}
    fine = {"scales": [0.003], "thresholds": [0.4], "bits": 8}
    nodes = [
        make("HzCalibration", ["x"], ["xq"], domain="horizon", **grid),
        make("HzCalibration", ["w"], ["wq"], domain="horizon", **fine),
        make("Conv", ["xq", "wq"], ["c"], "conv"),
        make("DepthToSpace", ["c"], ["d"], "shuffle", blocksize=2),
        make("HzCalibration", ["d"], ["dq"], domain="horizon", **grid),
        make("Relu", ["dq"], ["y"], "act"),
    ]
    w = weights(8, 3, 1, 1, seed=1)
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, (1, 2, 8, 8))],
        [numpy_helper.from_array(w, "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("horizon", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    integers = compiler.convert(import_onnx(proto), "nash-e")
    kinds = [node.op_type for node in integers.model.graph]
    assert kinds[1:5] == ["QConv", "Reshape", "Transpose", "Reshape"]
    assert_all_paths_agree(integers, x)
