"""The optimized model: same numbers, same names of inputs and outputs, nothing left to fold."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from qtune.errors import ArgumentError
from qtune.hbir.onnx_import.names import with_unique_names
from qtune.onnx_debug.build.optimize import optimized

from .models import Array, classifier, items, model, weights

make = helper.make_node


def outputs(proto: onnx.ModelProto, feed: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    named = with_unique_names(proto)  # onnxruntime refuses two nodes of one name
    session = ort.InferenceSession(
        named.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    result: list[Array] = session.run(None, feed)
    return result


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
def test_batch_norms_are_folded_and_numbers_stay(opset: int) -> None:
    source = classifier(opset, "n")
    before = source.SerializeToString()
    made = optimized(source)
    assert source.SerializeToString() == before
    assert [n.op_type for n in made.graph.node][:3] == ["Conv", "Clip", "MaxPool"]
    assert made.opset_import[0].version == 21
    assert len({n.name for n in made.graph.node}) == len(made.graph.node)
    for x in (items(1, 3, 8, 8, count=1)[0], items(4, 3, 8, 8, count=1)[0]):
        (want,), (got,) = outputs(source, {"x": x}), outputs(made, {"x": x})
        # the fold rounds each weight once more: some units in the last place of sums of 27
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_folded_batch_norm_has_the_weights_of_its_formula() -> None:
    made = optimized(classifier())
    held = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    given = {t.name: numpy_helper.to_array(t).astype(float) for t in classifier().graph.initializer}
    factor = given["g"] / np.sqrt(given["v"] + 1e-5)
    want = (given["w0"] * factor.reshape(-1, 1, 1, 1)).astype(np.float32)
    np.testing.assert_array_equal(held["w0"], want)
    bias = (given["b"] - given["m"] * factor).astype(np.float32)
    np.testing.assert_array_equal(held[made.graph.node[0].input[2]], bias)


@pytest.mark.parametrize("trans", [0, 1])
def test_an_output_keeps_its_name_when_what_made_it_is_folded(trans: int) -> None:
    shape = (3, 4) if trans else (4, 3)
    nodes = [
        make("Gemm", ["x", "w"], ["g"], transB=trans, name="renamed"),
        make("BatchNormalization", ["g", "one", "b", "b", "one"], ["y"]),
        make("Identity", ["y"], ["twin"]),
        make("Identity", ["x"], ["copy"]),
    ]
    sizes = {"y": [2, 3], "twin": [2, 3], "copy": [2, 4]}
    constants = {"w": weights(*shape), "one": np.ones(3, np.float32), "b": weights(3)}
    source = model(nodes, {"x": [2, 4]}, sizes, constants)
    made = optimized(source)
    assert [info.name for info in made.graph.output] == ["y", "twin", "copy"]
    x = items(2, 4, count=1)[0]
    for want, got in zip(outputs(source, {"x": x}), outputs(made, {"x": x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)  # one rounding of each weight


def test_added_constants_become_bias_and_shared_weights_stay_shared() -> None:
    nodes = [
        make("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        make("Add", ["c", "k"], ["a"]),
        make("Conv", ["a", "w", "b"], ["y"], pads=[1] * 4),
    ]
    constants = {"w": weights(3, 3, 3, 3), "b": weights(3), "k": weights(1, 3, 1, 1, seed=1)}
    source = model(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 3, 6, 6]}, constants)
    made = optimized(source)
    assert [n.op_type for n in made.graph.node] == ["Conv", "Conv"]
    assert made.graph.node[0].input[1] == made.graph.node[1].input[1] == "w"
    held = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    first = held[made.graph.node[0].input[2]]
    np.testing.assert_array_equal(first, constants["b"] + constants["k"].reshape(-1))
    np.testing.assert_array_equal(held["b"], constants["b"])
    x = items(1, 3, 6, 6, count=1)[0]
    np.testing.assert_allclose(  # the constant is added before and not behind the sum
        outputs(made, {"x": x})[0], outputs(source, {"x": x})[0], rtol=1e-5, atol=1e-6
    )


def test_a_batch_norm_of_a_tensor_that_others_read_stays() -> None:
    nodes = [
        make("Conv", ["x", "w"], ["c"]),
        make("BatchNormalization", ["c", "one", "b", "b", "one"], ["n"]),
        make("Add", ["n", "c"], ["y"]),
    ]
    constants = {"w": weights(3, 3, 3, 3), "one": np.ones(3, np.float32), "b": weights(3)}
    made = optimized(model(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 3, 4, 4]}, constants))
    assert [n.op_type for n in made.graph.node] == ["Conv", "BatchNormalization", "Add"]


def test_free_sizes_are_given_or_named() -> None:
    nodes = [make("Conv", ["x", "w"], ["y"])]
    source = model(
        nodes, {"x": ["n", 3, "h", "w"]}, {"y": ["n", 3, "i", "j"]}, {"w": weights(3, 3, 3, 3)}
    )
    with pytest.raises(ArgumentError, match=r"input_dict=.*\n  - 'x': \[any, 3, any, any\]"):
        optimized(source)
    made = optimized(source, {"x": [2, 3, 6, 5]})
    assert [d.dim_value for d in made.graph.output[0].type.tensor_type.shape.dim] == [2, 3, 4, 3]
    with pytest.raises(ArgumentError, match=r"input 'x'.*got input_shape \[1, 4, 6, 6\]"):
        optimized(source, {"x": [1, 4, 6, 6]})
    with pytest.raises(ArgumentError, match=r"input_dict names image; the model has the inputs x"):
        optimized(source, {"image": [1]})
