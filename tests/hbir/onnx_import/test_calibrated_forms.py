"""Each form of a calibrated operator on integers, within a step of the calibrated model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from qtune.bpu import compiler
from qtune.bpu.ort import run_in_onnxruntime
from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import import_onnx

from .calibrated_files import by_onnxruntime, calibrated, on_grid
from .quantized_files import Array, samples

STEP = 1 + 3e-3
"""One step, and the float32 rounding of values of 32767 steps."""

MAP, MATRIX, TOKENS = (2, 4, 6, 6), (3, 7), (2, 3, 7)
make = helper.make_node


def weight(*shape: int) -> Array:
    return np.random.default_rng(3).normal(0, 0.5, shape).astype(np.float32)


def scales(array: Array, axis: int | None, bits: int) -> Array:
    axes = None if axis is None else tuple(i for i in range(array.ndim) if i != axis)
    absmax = np.atleast_1d(np.abs(array).max(axis=axes))
    return (absmax / np.float32(2 ** (bits - 1) - 0.5)).astype(np.float32)


def one_operator(
    nodes: Sequence[onnx.NodeProto],
    shape: tuple[int, ...],
    constants: Mapping[str, Array],
    bits: int = 8,
) -> tuple[onnx.ModelProto, np.float32]:
    """``nodes`` from ``x_q`` to ``v``, both calibrated; the step of the result ``y``."""
    first = on_grid("x", 3 / (2 ** (bits - 1) - 0.5), bits)
    float_model = calibrated([first, *nodes], shape, constants)
    float_model.graph.output[0].name = "v"
    float_model.graph.output[0].type.tensor_type.ClearField("shape")
    result = by_onnxruntime(float_model, {"x": samples(shape, 5)})["v"]
    step = scales(result, None, bits)[0]
    last = on_grid("v", step, bits, output="y")
    return calibrated([first, *nodes, last], shape, constants, result.shape), step


def check(model: onnx.ModelProto, shape: tuple[int, ...], step: np.float32) -> list[str]:
    """Names of the integer operators, which give the same bits in onnxruntime."""
    x = samples(shape, 5)
    integers = compiler.convert(import_onnx(model), "nash-e")
    got = integers[0].feed({"x": x})["y"]
    np.testing.assert_array_equal(got, run_in_onnxruntime(integers, {"x": x})["y"])
    assert not integers.report
    assert np.abs(got - by_onnxruntime(model, {"x": x})["y"]).max() / step <= STEP
    kinds = [node.op_type for node in integers.model.graph]
    return [kind for kind in kinds if kind not in ("Quantize", "Dequantize")]


W = Mapping[str, Any]
CASES: dict[str, tuple[str, tuple[int, ...], Array, int | None, W, str]] = {
    "conv": ("Conv", MAP, weight(6, 4, 3, 3), 0, {}, "QConv"),
    "conv, one scale": ("Conv", MAP, weight(6, 4, 3, 3), None, {}, "QConv"),
    "conv, int16 weight": ("Conv", MAP, weight(6, 4, 3, 3), 0, {"bits": 16}, "QConv8x16"),
    "conv, int4 weight": ("Conv", MAP, weight(6, 4, 3, 3), 0, {"bits": 4}, "QConv"),
    "depthwise": ("Conv", MAP, weight(4, 1, 3, 3), 0, {"group": 4}, "QConv"),
    "transposed conv": ("ConvTranspose", MAP, weight(4, 5, 3, 3), 1, {}, "QConvTranspose"),
    "transposed, grouped": (
        "ConvTranspose",
        MAP,
        weight(4, 3, 3, 3),
        1,
        {"group": 2},
        "QConvTranspose",
    ),
    "gemm": ("Gemm", MATRIX, weight(7, 5), 1, {}, "QLinear"),
    "gemm, turned": ("Gemm", MATRIX, weight(5, 7), 0, {"transB": 1}, "QLinear"),
    "gemm, alpha and beta": (
        "Gemm",
        MATRIX,
        weight(5, 7),
        0,
        {"transB": 1, "alpha": 0.5, "beta": 2.0},
        "QLinear",
    ),
    "gemm, negative alpha": (
        "Gemm",
        MATRIX,
        weight(5, 7),
        0,
        {"transB": 1, "alpha": -0.5},
        "QLinear",
    ),
    "matmul": ("MatMul", TOKENS, weight(7, 5), 1, {}, "QLinear"),
    "matmul, one scale": ("MatMul", TOKENS, weight(7, 5), None, {}, "QLinear"),
    "matmul, batch of matrices": ("MatMul", TOKENS, weight(2, 7, 5), None, {}, "QMatMul"),
    "add": ("Add", MAP, weight(4, 1, 1), None, {}, "QAdd"),
    "mul": ("Mul", MAP, weight(4, 1, 1), None, {}, "QMul"),
    "sub": ("Sub", MAP, weight(4, 1, 1), None, {}, "QAdd"),
    "div": ("Div", MAP, np.abs(weight(4, 1, 1)) + np.float32(0.5), None, {}, "QMul"),
    "mul by a number": ("Mul", MAP, np.float32([0.7]), None, {}, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_with_a_calibrated_constant_runs_on_integers(name: str) -> None:
    op_type, shape, array, axis, attrs, expected = CASES[name]
    bits = attrs.get("bits", 8)
    given = {key: value for key, value in attrs.items() if key != "bits"}
    constants = {"w": array}
    bias = []
    if op_type in ("Conv", "ConvTranspose", "Gemm"):
        channels = array.shape[axis or 0] * (attrs["group"] if name.endswith("grouped") else 1)
        constants["b"], bias = weight(channels), ["b"]
    nodes = [
        on_grid("w", scales(array, axis, bits), bits, -1 if axis is None else axis),
        make(op_type, ["x_q", "w_q", *bias], ["v"], name="main", **given),
    ]
    model, step = one_operator(nodes, shape, constants)
    kinds = check(model, shape, step)
    # a relu or a number in the multiplier leaves a Requantize
    assert [kind for kind in kinds if kind != "Requantize"] == [expected] * bool(expected)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_gemm_of_a_turned_input_keeps_its_name(bits: int) -> None:
    """A Gemm that is taken apart: its parts bear its name, so that comparisons join on it."""
    array = weight(5, 7)
    nodes = [
        on_grid("w", scales(array, 0, 8), 8, 0),
        make("Gemm", ["x_q", "w_q", "b"], ["v"], name="head", transA=1, transB=1, alpha=0.25),
    ]
    model, step = one_operator(nodes, (7, 3), {"w": array, "b": weight(3, 5)[:1]}, bits)
    check(model, (7, 3), step)
    assert "head" in import_onnx(model)[0].operator_names()
    assert "head" in compiler.convert(import_onnx(model), "nash-e")[0].operator_names()


def test_the_bias_of_a_matmul_joins_it_on_both_sides() -> None:
    array = weight(7, 5)
    for operands in (["t", "b"], ["b", "t"]):
        nodes = [
            on_grid("w", scales(array, 1, 8), 8, 1),
            make("MatMul", ["x_q", "w_q"], ["t"], name="product"),
            make("Add", operands, ["v"], name="plus"),
        ]
        model, step = one_operator(nodes, TOKENS, {"w": array, "b": weight(5)})
        assert check(model, TOKENS, step) == ["QLinear"]


def test_a_turned_weight_is_a_weight() -> None:
    array = weight(5, 7)
    nodes = [
        on_grid("w", scales(array, 0, 8), 8, 0),
        make("Transpose", ["w_q"], ["t"], name="turn", perm=[1, 0]),
        make("MatMul", ["x_q", "t"], ["v"], name="product"),
    ]
    model, step = one_operator(nodes, TOKENS, {"w": array})
    assert check(model, TOKENS, step) == ["QLinear"]


def test_a_calibration_with_the_grid_of_its_source_converts_to_nothing() -> None:
    nodes = [
        make("MaxPool", ["x_q"], ["m"], name="pool", kernel_shape=[2, 2]),
        on_grid("m", 3 / 127.5),
        make("Transpose", ["m_q"], ["t"], name="turn", perm=[0, 2, 3, 1]),
        on_grid("t", 3 / 127.5, output="v"),
    ]
    model = calibrated([on_grid("x", 3 / 127.5), *nodes], MAP, {}, (2, 5, 5, 4))
    model.graph.output[0].name = "v"
    integers = compiler.convert(import_onnx(model), "nash-e")
    kinds = [node.op_type for node in integers.model.graph]
    assert kinds == ["Quantize", "MaxPool", "Transpose", "Dequantize"] or (
        kinds == ["Quantize", "QMaxPool", "Transpose", "Dequantize"]
    )


def test_two_convolutions_share_a_bias_at_scales_of_their_own() -> None:
    first, second = weight(6, 4, 3, 3), weight(6, 4, 3, 3)[::-1] * 4
    nodes = [
        on_grid("w", scales(first, 0, 8), 8, 0),
        on_grid("u", scales(second, 0, 8), 8, 0),
        make("Conv", ["x_q", "w_q", "b"], ["p"], name="left"),
        make("Conv", ["x_q", "u_q", "b"], ["r"], name="right"),
        on_grid("p", 0.05),
        on_grid("r", 0.2),
        make("Add", ["p_q", "r_q"], ["v"], name="plus"),
    ]
    model, step = one_operator(nodes, MAP, {"w": first, "u": second, "b": weight(6)})
    x = samples(MAP, 5)
    integers = compiler.convert(import_onnx(model), "nash-e")
    got = integers[0].feed({"x": x})["y"]
    # each convolution may be one step of its own grid off, and the sum one
    bound = (0.05 + 0.2) / step + STEP
    assert np.abs(got - by_onnxruntime(model, {"x": x})["y"]).max() / step <= bound
    left, right = (node for node in integers.model.graph if node.op_type == "QConv")
    x_step = np.float64(np.float32(3 / 127.5))
    for node, array in ((left, first), (right, second)):
        factors = x_step * scales(array, 0, 8).astype(np.float64)
        expected = np.floor(weight(6).astype(np.float64) / factors + 0.5)
        held = [v.const_value.numpy().reshape(-1) for v in node.inputs if v.const_value is not None]
        assert any(np.array_equal(item, expected) for item in held)


@pytest.mark.parametrize(
    ("op_type", "shape", "array", "axis", "attrs", "words"),
    [
        (
            "Conv",
            MAP,
            weight(6, 4, 3, 3),
            1,
            {},
            "main: Conv: its weight has 4 scales along axis 1",
        ),
        ("ConvTranspose", MAP, weight(4, 5, 3, 3), 0, {}, "4 scales along axis 0"),
        ("Gemm", MATRIX, weight(7, 5), 0, {}, "7 scales along axis 0"),
        ("MatMul", TOKENS, weight(7, 5), 0, {}, "7 scales along axis 0"),
    ],
)
def test_scales_along_another_axis_are_refused_by_name(
    op_type: str, shape: Any, array: Array, axis: int, attrs: W, words: str
) -> None:
    nodes = [
        on_grid("w", scales(array, axis, 8), 8, axis),
        make(op_type, ["x_q", "w_q"], ["v"], name="main", **attrs),
    ]
    model, _ = one_operator(nodes, shape, {"w": array})
    with pytest.raises(OnnxImportError, match=words):
        import_onnx(model)


def test_an_operator_without_integer_form_runs_on_the_cpu_and_is_reported() -> None:
    nodes = [make("Softmax", ["x_q"], ["v"], name="soft")]
    model, step = one_operator(nodes, MATRIX, {})
    integers = compiler.convert(import_onnx(model), "nash-e")
    assert [note["op"] for note in integers.report] == ["soft"]
    x = samples(MATRIX, 5)
    got = integers[0].feed({"x": x})["y"]
    assert np.abs(got - by_onnxruntime(model, {"x": x})["y"]).max() / step <= STEP


def test_an_output_keeps_its_name_where_a_calibration_gives_it() -> None:
    model = calibrated([on_grid("x", 0.1, output="y")], MATRIX, {})
    for module in (import_onnx(model), compiler.convert(import_onnx(model), "nash-e")):
        assert [item.name for item in module[0].outputs] == ["y"]


def test_a_scale_per_channel_of_an_activation_is_refused_by_name() -> None:
    model = calibrated([on_grid("x", [0.1, 0.2, 0.3], axis=0, output="y")], MATRIX, {})
    with pytest.raises(OnnxImportError, match="x_HzCalibration: an activation has 3 scales"):
        import_onnx(model)
