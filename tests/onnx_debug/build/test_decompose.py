"""Composed operators in parts: what they compute, how they are called, which integers they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

from qtune.bpu.ort import new_session
from qtune.errors import ArgumentError
from qtune.hbir.builder import META_DTYPE
from qtune.hbir.module import HbirModule
from qtune.onnx_debug import build_model, get_sensitivity_of_nodes
from qtune.onnx_debug.build.decompose import Decomposed, decomposed
from qtune.onnx_debug.build.facts import Kind, facts_of
from qtune.onnx_debug.build.optimize import optimized
from qtune.onnx_debug.build.result import BuildResult
from tests.ops.whole import whole

from .models import items, model, weights

make = helper.make_node
MAX: dict[str, Any] = {"activation": {"calibration_type": "max"}}
INT8_OUTPUT = {"model_config": {**MAX, "model_output_type": "int8"}}
Array = np.ndarray[Any, Any]


def build(
    source: onnx.ModelProto,
    data: Sequence[Array],
    config: Mapping[str, Any] | None = None,
    march: str = "nash-e",
) -> BuildResult:
    given = {"model_config": MAX} if config is None else config
    made = build_model(
        source,
        march,
        {"x": list(data)},
        given,
        return_builder=True,
        save_model=False,
        verbose=False,
    )
    assert isinstance(made, BuildResult)
    return made


def apart(proto: onnx.ModelProto) -> Decomposed:
    facts = facts_of(proto)
    return decomposed(proto, {name for name, f in facts.items() if f.kind is Kind.FLOAT})


def between(
    op_type: str,
    inputs: Sequence[str],
    constants: Mapping[str, Array],
    shape: Sequence[int] = (2, 3, 8),
    opset: int = 17,
    **attrs: Any,
) -> onnx.ModelProto:
    """One operator, called ``op``, between a Tanh and a matmul with its own result."""
    nodes = [
        make("Tanh", ["x"], ["a"], name="before"),
        make("Sigmoid", ["x"], ["b"], name="beside"),
        make(op_type, inputs, ["c"], name="op", **attrs),
        make("Sigmoid", ["c"], ["d"], name="after"),
        make("MatMul", ["d", "last"], ["y"], name="head"),
    ]
    constants = {**constants, "last": weights(shape[-1], 4)}
    return model(nodes, {"x": shape}, {"y": [*shape[:-1], 4]}, constants, opset)


def run(proto: onnx.ModelProto, x: Array) -> Array:
    return np.asarray(
        new_session(proto.SerializeToString(), optimized=False).run(None, {"x": x})[0]
    )


INSIDE = ["max", "sub", "exp", "sum"]
NORM = ["mean", "sub", "square", "var", "rsqrt_Add", "rsqrt_Sqrt", "rsqrt", "mul"]
V = weights(8, seed=3) + np.float32(1)

CASES: dict[str, tuple[onnx.ModelProto, list[str]]] = {
    "softmax": (between("Softmax", ["a"], {}, axis=-1), [*INSIDE, "reciprocal", "mul"]),
    "softmax of the first axis": (
        between("Softmax", ["a"], {}, axis=-3),
        [*INSIDE, "reciprocal", "mul"],
    ),
    "log softmax": (between("LogSoftmax", ["a"], {}, axis=1), [*INSIDE, "log", "log_softmax"]),
    "layer norm": (
        between("LayerNormalization", ["a", "w", "v"], {"w": V, "v": weights(8)}),
        [*NORM, "weight_mul", "bias_add"],
    ),
    "layer norm without bias over two axes": (
        between("LayerNormalization", ["a", "w"], {"w": weights(3, 8)}, axis=-2, epsilon=1e-3),
        [*NORM, "weight_mul"],
    ),
    "instance norm": (
        between("InstanceNormalization", ["a", "w", "v"], {"w": weights(3), "v": weights(3)}),
        [*NORM, "weight_mul", "bias_add"],
    ),
    "division": (between("Div", ["a", "b"], {}), ["reciprocal", "mul"]),
    "division of a number": (between("Div", ["one", "b"], {"one": np.float32(1)}), ["reciprocal"]),
    "division by a constant": (between("Div", ["a", "w"], {"w": V}), ["mul"]),
    "logsumexp": (
        between("ReduceLogSumExp", ["a", "axes"], {"axes": np.array([1])}, opset=18),
        [*INSIDE, "log", "add"],
    ),
    "sum of three": (between("Sum", ["a", "b", "a"], {}), ["Add", "Add_1"]),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_compute_what_the_operator_does_and_are_called_after_it(name: str) -> None:
    source, parts = CASES[name]
    proto = optimized(source)
    before = proto.SerializeToString()
    made = apart(proto)
    assert proto.SerializeToString() == before
    assert made.of("op") == [f"op_{part}" for part in parts]
    (x,) = items(2, 3, 8, count=1)
    # both are float32 and differ in the order of a few roundings
    np.testing.assert_allclose(run(made.proto, x), run(proto, x), rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("name", "march"),
    [*((name, "nash-e") for name in CASES), ("softmax", "bayes-e"), ("layer norm", "bayes-e")],
)
def test_all_parts_run_on_integers(name: str, march: str) -> None:
    result = build(CASES[name][0], items(2, 3, 8), march=march)
    assert result.info["stays_float"] == {}
    assert {row.on for row in result.nodes} == {"BPU"}
    assert "op" in {node.name for node in result.optimized.graph.node}
    assert result.info["parts"] == {"op": [f"op_{part}" for part in CASES[name][1]]}
    # int8 inputs, results and weights
    assert result.info["outputs"]["y"]["quantized"] > 0.995


def layer_norm() -> nn.LayerNorm:
    norm = nn.LayerNorm(16)
    norm.weight.data = torch.from_numpy(np.linspace(0.5, 1.5, 16, dtype=np.float32))
    norm.bias.data = torch.from_numpy(weights(16))
    return norm


def operators(module: HbirModule) -> list[tuple[str, str | None]]:
    nodes = [node for node in module.model.graph if node.op_type != "Identity"]
    return [(n.op_type, n.outputs[0].metadata_props.get(META_DTYPE)) for n in nodes]


@pytest.mark.parametrize(
    ("net", "node", "steps"),
    [
        # the exact sums of exp differ from float32's by a few of its roundings
        (nn.Softmax(-1), make("Softmax", ["x"], ["y"], axis=-1), 0),
        # tables: fitted to the range of the codes here, to the calibrated range there
        (nn.LogSoftmax(-1), make("LogSoftmax", ["x"], ["y"], axis=-1), 1),
        (layer_norm(), make("LayerNormalization", ["x", "w", "b"], ["y"]), 1),
    ],
)
def test_the_integers_are_those_of_a_prepared_torch_model(
    net: nn.Module, node: onnx.NodeProto, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    x = np.random.default_rng(0).normal(0, 2, (2, 3, 16)).astype(np.float32)
    constants = {"w": np.linspace(0.5, 1.5, 16, dtype=np.float32), "b": weights(16)}
    used = {name: constants[name] for name in node.input if name != "x"}
    built = build(model([node], {"x": [2, 3, 16]}, {"y": [2, 3, 16]}, used), [x], INT8_OUTPUT)
    prepared = whole(net, torch.from_numpy(x))
    assert operators(built.quantized) == operators(prepared.quantized)
    scale = built.calibrated.graph.node[-1].attribute
    step = next(item.floats[0] for item in scale if item.name == "scales")
    got = np.asarray(built.quantized[0].feed({"x": x})["y"])
    difference = np.abs(got - prepared.integer()[0].numpy()).max() / step
    assert round(float(difference), 3) <= steps


def attention(mask: Array | None) -> onnx.ModelProto:
    """Scores of x with itself, a mask, softmax, and the product with x."""
    nodes = [
        make("Transpose", ["x"], ["t"], perm=[0, 2, 1], name="turn"),
        make("MatMul", ["x", "t"], ["scores"], name="scores"),
        *([] if mask is None else [make("Add", ["scores", "mask"], ["m"], name="mask")]),
        make("Softmax", ["scores" if mask is None else "m"], ["p"], name="soft"),
        make("MatMul", ["p", "x"], ["y"], name="mix"),
    ]
    constants = {} if mask is None else {"mask": mask}
    return model(nodes, {"x": [1, 6, 8]}, {"y": [1, 6, 8]}, constants)


@pytest.mark.parametrize("low", [-np.inf, -1e9, -1e4])
def test_a_mask_takes_no_range_from_the_scores(low: float) -> None:
    blocked = np.triu(np.ones((6, 6), bool), 1)
    mask = np.where(blocked, np.float32(low), np.float32(0)).astype(np.float32)
    result = build(attention(mask), items(1, 6, 8))
    assert result.info["stays_float"] == {}
    assert "mask" not in {row.node for row in result.nodes}
    cosines = [(row.calibrated_cosine, row.quantized_cosine) for row in result.nodes]
    assert all(value is not None and value > 0.99 for row in cosines for value in row)
    # int8 scores: their steps are those without a mask
    plain = build(attention(None), items(1, 6, 8))
    threshold = {row.node: row.threshold for row in result.nodes}
    assert threshold["soft_min"] == {row.node: row.threshold for row in plain.nodes}["soft_max"]
    weights_of = {node.output[0]: node for node in result.calibrated.graph.node}
    assert "p" in weights_of
    got: dict[str, Any] = {}
    result.quantized[0].run(
        {"x": items(1, 6, 8)[0]}, observe=lambda name, r: got.update({name: r.values.numpy()})
    )
    assert not got["soft_mul"][0][blocked].any()


def test_a_row_without_a_free_position_is_what_float_makes_of_it() -> None:
    mask = np.zeros((6, 6), np.float32)
    mask[2] = -1e9
    result = build(attention(mask), items(1, 6, 8))
    (x,) = items(1, 6, 8, count=1)
    np.testing.assert_allclose(  # the same weight everywhere, also in integers
        np.asarray(result.quantized[0].feed({"x": x})["y"])[0, 2], x[0].mean(0), atol=0.05
    )


def test_a_softmax_before_opset_13_is_over_all_further_axes() -> None:
    nodes = [
        make("Tanh", ["x"], ["a"], name="before"),
        make("Softmax", ["a"], ["p"], axis=1, name="soft"),
        make("MatMul", ["p", "last"], ["y"], name="head"),
    ]
    sizes = ({"x": [2, 3, 4]}, {"y": [2, 3, 5]})
    source = model(nodes, *sizes, {"last": weights(4, 5)}, opset=11)
    result = build(source, items(2, 3, 4))
    assert result.info["stays_float"] == {}
    (x,) = items(2, 3, 4, count=1)
    exact = np.exp(np.tanh(x.astype(np.float64)))
    exact = exact / exact.sum(axis=(1, 2), keepdims=True) @ weights(4, 5)
    got = np.asarray(result.quantized[0].feed({"x": x})["y"])
    # int8 weights of at most 1/4: half a step each, over 4 products of at most 1
    np.testing.assert_allclose(got, exact, atol=0.004)


def test_an_operator_that_only_makes_an_output_stays_whole_also_behind_a_reshape() -> None:
    nodes = [
        make("Gemm", ["x", "w"], ["a"], name="head"),
        make("Softmax", ["a"], ["p"], name="soft"),
        make("Reshape", ["p", "sizes"], ["y"], name="shape"),
    ]
    constants = {"w": weights(4, 6), "sizes": np.array([-1])}
    source = model(nodes, {"x": [1, 4]}, {"y": [6]}, constants)
    result = build(source, items(1, 4))
    assert list(result.info["stays_float"]) == ["soft"]
    assert "output of the model" in result.info["stays_float"]["soft"]
    assert [node.op_type for node in result.calibrated.graph.node][-2:] == ["Softmax", "Reshape"]
    wide = build(source, items(1, 4), INT8_OUTPUT)
    assert wide.info["stays_float"] == {}


def test_what_the_march_refuses_a_part_of_stays_whole_with_one_reason() -> None:
    result = build(attention(None), items(1, 6, 8), march="bernoulli2")
    assert "Softmax" in {node.op_type for node in result.calibrated.graph.node}
    assert list(result.info["stays_float"]).count("soft") == 1
    assert result.info["parts"] == {}
    assert result.info["stays_float"]["soft"].startswith("its part soft_")


def test_a_division_by_zero_in_a_branch_that_is_not_taken_stays_whole() -> None:
    nodes = [
        make("Relu", ["x"], ["r"], name="some_zeros"),
        make("Div", ["x", "r"], ["d"], name="ratio"),
        make("Clip", ["d", "zero", "two"], ["c"], name="bounded"),
        make("MatMul", ["c", "last"], ["y"], name="head"),
    ]
    constants = {"zero": np.float32(0), "two": np.float32(2), "last": weights(8, 4)}
    source = model(nodes, {"x": [2, 3, 8]}, {"y": [2, 3, 4]}, constants)
    result = build(source, items(2, 3, 8))
    reason = "its part ratio_reciprocal becomes NaN or infinite on the calibration data"
    assert result.info["stays_float"]["ratio"] == reason
    assert result.info["outputs"]["y"]["quantized"] > 0.999  # int8


def test_a_norm_whose_statistics_are_read_stays_whole() -> None:
    nodes = [
        make("Tanh", ["x"], ["a"], name="before"),
        make("LayerNormalization", ["a", "w", "v"], ["n", "mean", "inverse"], name="norm"),
        make("Mul", ["n", "inverse"], ["m"], name="scaled"),
        make("Add", ["m", "mean"], ["s"], name="raised"),
        make("MatMul", ["s", "last"], ["y"], name="head"),
    ]
    constants = {"w": V, "v": weights(8), "last": weights(8, 4)}
    source = model(nodes, {"x": [2, 3, 8]}, {"y": [2, 3, 4]}, constants)
    result = build(source, items(2, 3, 8))
    assert list(result.info["stays_float"]) == ["norm"]
    assert result.info["outputs"]["y"]["quantized"] > 0.999  # int8 around it


def test_the_configuration_names_the_operator_or_a_part() -> None:
    source = between("Softmax", ["a"], {}, axis=-1)
    config: dict[str, Any] = {"model_config": MAX}
    floats = build(source, items(2, 3, 8), {**config, "node_config": {"op": {"qtype": "float32"}}})
    assert floats.info["stays_float"] == {"op": "the configuration keeps it float32"}
    by_type = build(
        source, items(2, 3, 8), {**config, "op_config": {"Softmax": {"qtype": "int16"}}}
    )
    assert "a" in by_type.info["int16"]
    plain = build(source, items(2, 3, 8))
    assert "a" not in plain.info["int16"]
    part = {"op_mul": {"input0": "int16"}, "after": {"qtype": "int16"}}
    named = build(source, items(2, 3, 8), {**config, "node_config": part})
    assert "c" in named.info["int16"]
    assert "a" not in named.info["int16"]
    one_input = {**config, "node_config": {"op": {"input0": "int16"}}}
    assert "a" in build(source, items(2, 3, 8), one_input).info["int16"]
    with pytest.raises(ArgumentError, match="op: there is no input4, Softmax has 1 here"):
        build(source, items(2, 3, 8), {**config, "node_config": {"op": {"input4": "int16"}}})


def test_the_debugger_shows_each_part() -> None:
    result = build(between("Softmax", ["a"], {}, axis=-1), items(2, 3, 8))
    found = get_sensitivity_of_nodes(
        result.calibrated, "cosine-similarity", {"x": items(2, 3, 8)}, verbose=False
    )
    parts = [name for name in found if name.startswith("op_")]
    assert sorted(parts) == sorted(f"op_{part}" for part in CASES["softmax"][1])


def written(*, root: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """A layer norm in single operators, as exporters of older opsets write it."""
    nodes = [
        make("Tanh", ["x"], ["a"], name="before"),
        make("ReduceMean", ["a"], ["mean"], axes=[-1], name="n_mean"),
        make("Sub", ["a", "mean"], ["d"], name="n_sub"),
        make("Pow", ["d", "two"], ["s"], name="n_pow"),
        make("ReduceMean", ["s"], ["v"], axes=[-1], name="n_var"),
        make("Add", ["v", "eps"], ["e"], name="n_eps"),
        make("Sqrt", ["e"], ["r"], name="n_root"),
        *root,
        make("Mul", ["q", "w"], ["m"], name="n_weight"),
        make("Add", ["m", "b"], ["n"], name="n_bias"),
        make("MatMul", ["n", "last"], ["y"], name="head"),
    ]
    constants = {"two": np.float32(2), "eps": np.float32(1e-5), "w": V, "b": weights(8)}
    constants["last"] = weights(8, 4)
    return model(nodes, {"x": [2, 3, 8]}, {"y": [2, 3, 4]}, constants, opset=13)


@pytest.mark.parametrize(
    "root",
    [
        [make("Div", ["d", "r"], ["q"], name="n_div")],
        [
            make("Reciprocal", ["r"], ["i"], name="n_inverse"),
            make("Mul", ["d", "i"], ["q"], name="n_div"),
        ],
    ],
)
def test_a_norm_of_single_operators_gets_the_integers_of_a_layer_norm(
    root: list[onnx.NodeProto],
) -> None:
    single = build(written(root=root), items(2, 3, 8))
    assert single.info["stays_float"] == {}
    assert {row.on for row in single.nodes} == {"BPU"}
    divided = {"n_div": ["n_div_reciprocal", "n_div_mul"]} if len(root) == 1 else {}
    assert single.info["parts"] == divided
    nodes = [
        make("Tanh", ["x"], ["a"], name="before"),
        make("LayerNormalization", ["a", "w", "b"], ["n"], name="norm"),
        make("MatMul", ["n", "last"], ["y"], name="head"),
    ]
    constants = {"w": V, "b": weights(8), "last": weights(8, 4)}
    norm = model(nodes, {"x": [2, 3, 8]}, {"y": [2, 3, 4]}, constants)
    whole_norm = build(norm, items(2, 3, 8))
    (x,) = items(2, 3, 8, count=1)
    assert operators(single.quantized) == operators(whole_norm.quantized)
    np.testing.assert_array_equal(
        np.asarray(single.quantized[0].feed({"x": x})["y"]),
        np.asarray(whole_norm.quantized[0].feed({"x": x})["y"]),
    )


def test_vectors_of_unit_length_are_int16_inside() -> None:
    nodes = [
        make("Tanh", ["x"], ["a"], name="before"),
        make("ReduceL2", ["a"], ["length"], axes=[-1], name="norm"),
        make("Clip", ["length", "least"], ["some"], name="some"),
        make("Expand", ["some", "sizes"], ["wide"], name="wide"),
        make("Div", ["a", "wide"], ["unit"], name="unit"),
        make("MatMul", ["unit", "last"], ["y"], name="head"),
    ]
    constants = {"least": np.float32(1e-12), "sizes": np.array([2, 3, 8]), "last": weights(8, 4)}
    source = model(nodes, {"x": [2, 3, 8]}, {"y": [2, 3, 4]}, constants)
    result = build(source, items(2, 3, 8))
    assert result.info["stays_float"] == {}
    types = {row.node: row.output_type for row in result.nodes}
    inside = ["norm_square", "norm_sum", "norm_sqrt", "some", "wide", "unit_reciprocal"]
    assert {types[name] for name in inside} == {"si16"}
    assert types["unit_mul"] == "si8"
    assert result.info["outputs"]["y"]["quantized"] > 0.999  # int8


def test_slopes_have_codes_one_or_one_per_channel() -> None:
    for slope in (np.float32([0.3]), np.abs(weights(4, 1, 1)), np.abs(weights(1, 4, 1, 1))):
        nodes = [
            make("Conv", ["x", "k"], ["c"], name="conv"),
            make("PRelu", ["c", "slope"], ["p"], name="act"),
            make("Conv", ["p", "k2"], ["y"], name="last"),
        ]
        constants = {"k": weights(4, 3, 1, 1), "slope": slope, "k2": weights(2, 4, 1, 1)}
        source = model(nodes, {"x": [1, 3, 5, 5]}, {"y": [1, 2, 5, 5]}, constants)
        result = build(source, items(1, 3, 5, 5))
        assert result.info["stays_float"] == {}
        grids = {n.name: n for n in result.calibrated.graph.node if n.op_type == "HzCalibration"}
        scales = next(
            a.floats for a in grids["slope_HzCalibration"].attribute if a.name == "scales"
        )
        assert len(scales) == slope.size
        assert result.info["outputs"]["y"]["quantized"] > 0.999  # int8


def test_a_constant_added_to_a_matmul_is_its_bias_and_takes_what_follows_along() -> None:
    nodes = [
        make("MatMul", ["x", "w"], ["m"], name="linear"),
        make("Add", ["b", "m"], ["s"], name="bias"),
        make("Add", ["s", "x"], ["t"], name="residual"),
        make("Relu", ["t"], ["r"], name="relu"),
        make("MatMul", ["r", "w"], ["y"], name="last"),
    ]
    constants = {"w": weights(8, 8), "b": weights(8)}
    source = model(nodes, {"x": [2, 3, 8]}, {"y": [2, 3, 8]}, constants)
    result = build(source, items(2, 3, 8))
    grids = [n.name for n in result.calibrated.graph.node if n.op_type == "HzCalibration"]
    assert grids == ["x_HzCalibration", "w_HzCalibration", "r_HzCalibration"]
    assert [kind for kind, _ in operators(result.quantized)] == [
        "Quantize",
        "QLinearAdd",
        "QLinearAcc",
        "DequantizeAcc",
    ]
    assert {row.on for row in result.nodes} == {"BPU"}


def test_a_matrix_added_by_a_gemm_is_an_addition_of_its_own() -> None:
    nodes = [
        make("Gemm", ["x", "w", "c"], ["g"], name="gemm", beta=0.5),
        make("Sigmoid", ["g"], ["s"], name="act"),
        make("Gemm", ["s", "w"], ["y"], name="last"),
    ]
    constants = {"w": weights(4, 4), "c": weights(2, 4)}
    source = model(nodes, {"x": [2, 4]}, {"y": [2, 4]}, constants)
    result = build(source, items(2, 4))
    assert result.info["stays_float"] == {}
    assert result.info["outputs"]["y"]["quantized"] > 0.999  # int8


def masked_by_integers(kind: str) -> onnx.ModelProto:
    """An attention whose mask is an input of zeros and ones, as exporters write it."""
    to_bool = make("Cast", ["m"], ["free"], to=onnx.TensorProto.BOOL, name="to_bool")
    to_float = make("Cast", ["m"], ["ones"], to=onnx.TensorProto.FLOAT, name="to_float")
    inverse = make("Sub", ["one", "ones"], ["inverse"], name="inverse")
    ways = {
        "product": [to_float, inverse, make("Mul", ["inverse", "low"], ["bias"], name="low")],
        "choice": [
            to_float,
            inverse,
            make("Cast", ["inverse"], ["block"], to=onnx.TensorProto.BOOL, name="block"),
            make("Where", ["block", "low", "inverse"], ["bias"], name="low"),
        ],
        "infinite": [to_bool, make("Where", ["free", "zero", "inf"], ["bias"], name="low")],
        "filled": [to_bool, make("Where", ["free", "scores", "low"], ["masked"], name="low")],
    }
    is_added = kind != "filled"
    nodes = [
        make("Transpose", ["x"], ["t"], perm=[0, 2, 1], name="turn"),
        make("MatMul", ["x", "t"], ["scores"], name="scores"),
        make("Unsqueeze", ["mask", "axis"], ["m"], name="wide"),
        *ways[kind],
        *([make("Add", ["scores", "bias"], ["masked"], name="add")] if is_added else []),
        make("Softmax", ["masked"], ["p"], name="soft"),
        make("MatMul", ["p", "x"], ["y"], name="mix"),
    ]
    known = {
        "axis": np.array([1]),
        "one": np.float32(1),
        "zero": np.float32(0),
        "low": np.float32(-3.4e38),
        "inf": np.float32(-np.inf),
    }
    read = {name for node in nodes for name in node.input}
    constants = {name: array for name, array in known.items() if name in read}
    made = model(nodes, {"x": [2, 6, 8], "mask": [2, 6]}, {"y": [2, 6, 8]}, constants)
    made.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return made


@pytest.mark.parametrize("kind", ["product", "choice", "infinite", "filled"])
def test_a_mask_that_is_an_input_takes_no_range_from_the_scores(kind: str) -> None:
    xs = items(2, 6, 8)
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2])
    result = build_model(
        masked_by_integers(kind),
        "nash-e",
        {"x": xs, "mask": [mask] * len(xs)},
        {"model_config": MAX},
        return_builder=True,
        save_model=False,
        verbose=False,
    )
    assert isinstance(result, BuildResult)
    assert result.info["stays_float"] == {}
    scores = max(np.abs(x @ x.transpose(0, 2, 1)).max() for x in xs)
    threshold = {row.node: row.threshold for row in result.nodes}["soft_min"]
    # onnxruntime sums the products in another order
    assert threshold == pytest.approx(scores, rel=1e-6)
    assert result.info["outputs"]["y"]["quantized"] > 0.999  # int8
    other = np.array([[1, 1, 0, 0, 0, 0], [1] * 6])
    got = np.asarray(result.quantized[0].feed({"x": xs[0], "mask": other})["y"])
    exact = np.where(other[:, None] == 1, xs[0] @ xs[0].transpose(0, 2, 1), -np.inf)
    exact = np.exp(exact - exact.max(-1, keepdims=True))
    exact = exact / exact.sum(-1, keepdims=True) @ xs[0]
    cosine = (got * exact).sum() / np.linalg.norm(got) / np.linalg.norm(exact)
    assert cosine > 0.999  # int8


def test_parts_whose_sizes_onnx_can_not_infer_leave_the_operator_whole() -> None:
    """onnx takes the rank-1 operands of this outer product for two shapes that don't fit."""
    nodes = [
        helper.make_node("Einsum", ["a", "b"], ["ab"], "outer", equation="i,j->ij"),
        helper.make_node("Relu", ["ab"], ["y"], "act"),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("a", [2]), ("b", [3]), ("y", [2, 3]))
    ]
    graph = helper.make_graph(nodes, "g", ends[:2], ends[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    found = decomposed(optimized(proto), ["outer"])
    assert "can't infer the sizes of its parts" in found.refused["outer"]
    assert [node.op_type for node in found.proto.graph.node] == ["Einsum", "Relu"]
