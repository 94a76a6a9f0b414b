"""Operators of exported models beside convolutions: norms, einsum, shuffles, pools, scatters."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import import_onnx

from .single_nodes import (
    CONTRIB,
    assert_like_both,
    assert_like_onnxruntime,
    by_onnxruntime,
    make,
    model_of,
    normal,
    stated,
)


@pytest.mark.parametrize("shape", [(2, 4, 9), (2, 4, 5, 3), (1, 4, 2, 3, 4)])
def test_instance_normalization_of_rows_maps_and_volumes(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    node = make("InstanceNormalization", ["x", "a", "b"], ["y"], epsilon=1e-3)
    assert_like_both(model_of(node, x, {"a": normal(4), "b": normal(4, seed=1)}), x)


def test_group_normalization_has_a_weight_per_channel() -> None:
    x = normal(2, 6, 3, 4)
    node = make("GroupNormalization", ["x", "a", "b"], ["y"], num_groups=3)
    assert_like_both(model_of(node, x, {"a": normal(6), "b": normal(6, seed=1)}), x)


def test_mean_variance_normalization_over_other_axes() -> None:
    x = normal(2, 3, 4, 5)
    node = make("MeanVarianceNormalization", ["x"], ["y"], axes=[1, 3])
    assert_like_both(model_of(node, x), x)


@pytest.mark.parametrize("op_type", ["LpNormalization", "GlobalLpPool"])
@pytest.mark.parametrize("p", [1, 2])
def test_p_norms(op_type: str, p: int) -> None:
    x = normal(2, 3, 4, 5)
    assert_like_onnxruntime(model_of(make(op_type, ["x"], ["y"], p=p), x), x)


def test_a_row_of_zeros_has_a_norm_of_zero() -> None:
    x = np.zeros((2, 3), np.float32)
    assert_like_onnxruntime(model_of(make("LpNormalization", ["x"], ["y"], p=2), x), x)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back_move_elements(mode: str) -> None:
    x = normal(2, 12, 3, 5)
    proto = model_of(make("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode), x)
    assert_like_both(proto, x, atol=0)
    x = normal(2, 3, 4, 6)
    assert_like_both(model_of(make("SpaceToDepth", ["x"], ["y"], blocksize=2), x), x, atol=0)


@pytest.mark.parametrize(
    ("equation", "shape", "other"),
    [
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("bij,kj->bik", (2, 3, 4), (5, 4)),
        ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
        ("bhwc,hkc->bhwk", (2, 3, 4, 5), (3, 6, 5)),
        ("...i,ij->...j", (2, 3, 4), (4, 5)),
        ("nchw,nc->nchw", (2, 3, 4, 5), (2, 3)),
        ("ij,kl", (2, 3), (4, 5)),
        ("ij,ij->i", (2, 3), (2, 3)),
    ],
)
def test_einsum_of_two(equation: str, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    x = normal(*shape)
    node = make("Einsum", ["x", "w"], ["y"], equation=equation)
    assert_like_both(model_of(node, x, {"w": normal(*other, seed=1)}), x)


@pytest.mark.parametrize("equation", ["bij->bji", "bij->b", "...ij->...ji"])
def test_einsum_of_one(equation: str) -> None:
    x = normal(2, 3, 4)
    assert_like_both(model_of(make("Einsum", ["x"], ["y"], equation=equation), x), x)


def test_an_einsum_with_a_diagonal_is_refused_by_its_equation() -> None:
    x = normal(3, 3)
    proto = model_of(make("Einsum", ["x"], ["y"], name="trace", equation="ii->i"), x)
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, (3,)))
    with pytest.raises(OnnxImportError, match="trace: Einsum: .*'ii->i'.*diagonal"):
        import_onnx(proto)


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("pads", [[1, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]])
@pytest.mark.parametrize("ceil", [0, 1])
def test_pools_with_pads_that_differ(op_type: str, pads: list[int], ceil: int) -> None:
    x = normal(1, 2, 8, 9)
    attrs: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": pads}
    node = make(op_type, ["x"], ["y"], ceil_mode=ceil, **attrs)
    assert_like_onnxruntime(model_of(node, x), x)


def test_an_average_with_counted_pads_and_ceil_mode() -> None:
    x = normal(1, 2, 8, 8)
    node = make("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1],
                ceil_mode=1, count_include_pad=1)  # fmt: skip
    assert_like_both(model_of(node, x), x)


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
def test_pools_of_rows(op_type: str) -> None:
    x = normal(2, 3, 9)
    node = make(op_type, ["x"], ["y"], kernel_shape=[3], strides=[2], pads=[1, 0])
    assert_like_onnxruntime(model_of(node, x), x)


def test_hardmax_marks_the_first_of_equal_elements() -> None:
    x = np.array([[1, 3, 3], [0, 0, -1]], np.float32)
    assert_like_both(model_of(make("Hardmax", ["x"], ["y"], axis=1), x), x, atol=0)


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_hardmax_before_opset_13_takes_all_axes_from_the_first_as_one(axis: int | None) -> None:
    x = normal(2, 3, 4)
    attributes = {} if axis is None else {"axis": axis}
    node = make("Hardmax", ["x"], ["y"], **attributes)
    assert_like_onnxruntime(model_of(node, x, opset=11), x)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_of_computed_indices(axis: int) -> None:
    x = normal(3, 4)
    nodes = [
        make("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        make("OneHot", ["i", "d", "v"], ["y"], axis=axis),
    ]
    constants = {"d": np.array(4, np.int64), "v": np.array([-1, 2], np.float32)}
    assert_like_both(model_of(nodes, x, constants), x, atol=0)


def test_scatters_and_gathers_by_constant_indices() -> None:
    x = normal(3, 4, 5)
    places = np.array([[0, 1], [2, -1]], np.int64)
    node = make("ScatterND", ["x", "i", "u"], ["y"])
    assert_like_both(model_of(node, x, {"i": places, "u": normal(2, 5, seed=1)}), x, atol=0)
    node = make("GatherND", ["x", "i"], ["y"])
    assert_like_both(model_of(node, x, {"i": places}), x, atol=0)
    along = np.array([[[0, 4, 1]], [[2, 3, 0]]], np.int64)
    node = make("ScatterElements", ["x", "i", "u"], ["y"], axis=2)
    assert_like_both(model_of(node, x, {"i": along, "u": normal(2, 1, 3, seed=1)}), x, atol=0)


def test_a_scatter_that_adds_is_refused() -> None:
    x = normal(3, 4)
    constants = {"i": np.array([[0]], np.int64), "u": normal(1, 4)}
    proto = model_of(make("ScatterND", ["x", "i", "u"], ["y"], name="s", reduction="add"), x,
                     constants)  # fmt: skip
    with pytest.raises(OnnxImportError, match="s: ScatterND: reduction='add' has no form"):
        import_onnx(proto)


def test_an_operator_whose_size_data_decide_says_where_to_cut() -> None:
    x = normal(3, 4)
    proto = model_of(make("NonZero", ["x"], ["y"], name="where"), x)
    with pytest.raises(OnnxImportError, match="where: NonZero has no form here: .*output_nodes"):
        import_onnx(proto)


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize(
    ("op_type", "names", "attrs"),
    [
        ("Gelu", ["x"], {}),
        ("BiasGelu", ["x", "b"], {}),
        ("FastGelu", ["x", "b"], {}),
        ("QuickGelu", ["x"], {}),
        ("FusedMatMul", ["x", "w"], {"transB": 1, "alpha": 0.5}),
        ("FusedMatMul", ["x", "r"], {"transA": 1}),
        ("SkipLayerNormalization", ["x", "r", "b", "b", "b"], {"epsilon": 1e-3}),
    ],
)
def test_operators_of_onnxruntimes_optimizer_are_the_standard_ones(
    op_type: str, names: list[str], attrs: dict[str, Any], opset: int
) -> None:
    x = normal(2, 3, 8)
    known = {"b": normal(8, seed=1), "w": normal(5, 8, seed=2), "r": normal(2, 3, 8, seed=3)}
    node = make(op_type, names, ["y"], name="node", domain=CONTRIB, **attrs)
    constants = {name: known[name] for name in names[1:]}
    assert_like_onnxruntime(model_of(node, x, constants, opset=opset), x)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", []), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4]), ("Clip", [0.0, 1.0])],
)
@pytest.mark.parametrize("summand", [False, True])
def test_a_convolution_with_its_activation_becomes_two(
    activation: str, parameters: list[float], summand: bool
) -> None:
    x = normal(1, 3, 5, 6)
    constants = {"w": normal(4, 3, 3, 3, seed=1), "b": normal(4, seed=2)}
    if summand:
        constants["z"] = normal(1, 4, 5, 6, seed=3)
    attrs = {"activation": activation, "pads": [1, 1, 1, 1]}
    if parameters:
        attrs["activation_params"] = parameters
    node = make("FusedConv", ["x", *constants], ["y"], name="node", domain=CONTRIB, **attrs)
    assert_like_onnxruntime(model_of(node, x, constants, opset=17), x)


def test_other_operators_of_onnxruntime_say_how_to_save_without_them() -> None:
    x = normal(1, 8)
    proto = model_of(make("Rfft", ["x"], ["y"], name="fft", domain=CONTRIB, signal_ndim=1), x)
    stated(proto, [np.zeros((1, 5, 2), np.float32)])
    with pytest.raises(OnnxImportError, match="fft: com.microsoft::Rfft .*without onnxruntime's"):
        import_onnx(proto)


def test_a_skip_norm_also_gives_its_sum() -> None:
    x = normal(2, 3, 8)
    names, outputs = ["x", "r", "g"], ["y", "", "", "total"]
    node = make("SkipLayerNormalization", names, outputs, name="node", domain=CONTRIB)
    constants = {"r": normal(2, 3, 8, seed=1), "g": normal(8, seed=2)}
    assert_like_onnxruntime(model_of(node, x, constants, outputs=("y", "total"), opset=17), x)


@pytest.mark.parametrize(
    ("op_type", "opset", "attrs"),
    [("Swish", 24, {}), ("Swish", 24, {"alpha": 1.5}), ("RMSNormalization", 23, {"axis": -1})],
)
def test_operators_of_newer_opsets_are_what_they_are_defined_by(
    op_type: str, opset: int, attrs: dict[str, Any]
) -> None:
    x = normal(2, 3, 8)
    names = ["x", "g"] if op_type == "RMSNormalization" else ["x"]
    constants = {name: normal(8, seed=1) for name in names[1:]}
    proto = model_of(make(op_type, names, ["y"], **attrs), x, constants, opset=opset)
    proto.ir_version = 11
    assert_like_both(proto, x)


def test_attention_of_opset_23_is_matmuls_and_a_softmax() -> None:
    x = normal(1, 2, 5, 4)
    node = make("Attention", ["x", "x", "x"], ["y"], name="attention", is_causal=1)
    proto = model_of(node, x, opset=23)
    proto.ir_version = 11
    assert_like_both(proto, x)
    kinds = [node.op_type for node in import_onnx(proto).model.graph]
    assert kinds.count("MatMul") == 2


def test_a_definition_that_onnx_can_not_put_in_place_is_one_clear_error() -> None:
    x = normal(1, 2, 5, 4)
    # onnx's inliner does not know an input that is left out between others
    node = make("Attention", ["x", "x", "x", "", "p", "p"], ["y", "k", "v"], is_causal=1)
    past = {"p": normal(1, 2, 3, 4)}
    proto = model_of(node, x, past, outputs=("y", "k", "v"), opset=23)
    for info, size in zip(proto.graph.output, (5, 8, 8), strict=True):
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, 1, (1, 2, size, 4)))
    with pytest.raises(OnnxImportError, match="can't be replaced by its definition"):
        import_onnx(proto)


@pytest.mark.parametrize(
    ("node", "shape", "constants"),
    [
        (make("DepthToSpace", ["x"], ["y"], blocksize=2), (1, 8, 2, 2), {}),
        (make("InstanceNormalization", ["x", "a", "a"], ["y"]), (1, 4, 5, 5), {"a": normal(4)}),
        (make("LayerNormalization", ["x", "a"], ["y"]), (1, 3, 4), {"a": normal(4)}),
        (make("Einsum", ["x", "x"], ["y"], equation="bqhd,bkhd->bhqk"), (1, 4, 2, 5), {}),
        (make("AveragePool", ["x"], ["y"], kernel_shape=[2]), (1, 2, 8), {}),
    ],
)
def test_operators_of_several_parts_keep_a_free_batch(
    node: onnx.NodeProto, shape: tuple[int, ...], constants: dict[str, Any]
) -> None:
    x = normal(*shape)
    proto = model_of(node, x, constants)
    stated(proto, by_onnxruntime(proto, x))
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "n"
    x = normal(3, *shape[1:])
    (got,) = (np.asarray(result) for result in import_onnx(proto)(x))
    expected = by_onnxruntime(proto, x)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)  # sums in another order


def test_slopes_of_any_shape_are_taken() -> None:
    x = normal(2, 3, 4)
    proto = model_of(make("PRelu", ["x", "a"], ["y"]), x, {"a": normal(3, 4, seed=1)})
    assert_like_both(proto, x, atol=0)


@pytest.mark.parametrize("read", [0, 1])
def test_a_single_result_of_top_k_is_taken(read: int) -> None:
    x = normal(2, 9)
    names = ["y", "other"][:: 1 - 2 * read]
    proto = model_of(make("TopK", ["x", "k"], names), x, {"k": np.array([3], np.int64)})
    assert_like_onnxruntime(proto, x, atol=0)


def test_a_remainder_of_floats_by_a_number() -> None:
    x = normal(3, 4) * 3
    proto = model_of(make("Mod", ["x", "d"], ["y"], fmod=1), x, {"d": np.array(0.75, np.float32)})
    assert_like_both(proto, x)
