"""ONNX names: A33, two nodes with one name or none; a graph output that must keep its name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtune.bpu import compiler
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug import get_sensitivity_of_nodes, insert_calibration, load_calibrated


def chain(kinds: Sequence[str], node_names: Sequence[str]) -> onnx.ModelProto:
    """Nodes one after the other; convolutions have 3 channels and weights of their own."""
    rng = np.random.default_rng(0)
    nodes, constants, source = [], [], "x"
    for index, (kind, name) in enumerate(zip(kinds, node_names, strict=True)):
        inputs, target = [source], f"t{index}" if index + 1 < len(kinds) else "y"
        if kind == "Conv":
            weight = rng.normal(0, 0.3, (3, 3, 1, 1)).astype(np.float32)
            constants.append(numpy_helper.from_array(weight, f"w{index}"))
            inputs.append(f"w{index}")
        nodes.append(helper.make_node(kind, inputs, [target], name=name))
        source = target
    info = helper.make_tensor_value_info
    shape = (1, 3, 4, 4)
    graph = helper.make_graph(
        nodes,
        "chain",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, shape)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("names", [("", "", ""), ("a", "a", "a"), ("a", "", "a")])
def test_nodes_of_one_name_or_none_are_told_apart(names: tuple[str, ...]) -> None:
    """A33: twice from one object; unique names, equal models, the source stays, a row each."""
    source = chain(["Conv", "Relu", "Conv"], names)
    before = source.SerializeToString(deterministic=True)
    first, second = insert_calibration(source), insert_calibration(source)
    onnx.checker.check_model(first)
    ort.InferenceSession(first.SerializeToString(), providers=["CPUExecutionProvider"])
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(
        deterministic=True
    )
    assert source.SerializeToString(deterministic=True) == before
    nodes = [node.name for node in first.graph.node]
    tensors = [name for node in first.graph.node for name in node.output]
    tensors += [item.name for item in (*first.graph.input, *first.graph.initializer)]
    assert all(nodes)
    assert len(set(nodes)) == len(nodes)
    assert len(set(tensors)) == len(tensors)
    model = load_calibrated(first)
    data = [np.random.default_rng(1).normal(0, 1, (1, 3, 4, 4)).astype(np.float32)]
    rows = get_sensitivity_of_nodes(model, calibrated_data=data)
    assert sorted(rows) == sorted(model.names("node"))
    assert len(rows) >= 2


@pytest.mark.parametrize("names", [("", "", ""), ("a", "a", "a")])
def test_names_of_the_integer_module_are_those_of_the_calibrated_model(
    names: tuple[str, ...],
) -> None:
    """A33, further: comparisons between the ONNX file and the .bc file join on the names."""
    calibrated = insert_calibration(chain(["Conv", "Relu", "Conv"], names))
    ordinary = {node.name for node in load_calibrated(calibrated).nodes}
    integers = compiler.convert(import_onnx(calibrated), "nash-e")
    found = set(integers[0].groups())
    assert ordinary <= found


def test_a_graph_output_keeps_its_name_behind_a_quantize_pair() -> None:
    """An output between two nodes, made by a DequantizeLinear that stands there twice."""
    source = chain(["Conv", "Relu", "Conv"], ["a", "b", "c"])
    graph = source.graph
    graph.initializer.append(numpy_helper.from_array(np.float32(0.05), "s"))
    graph.initializer.append(numpy_helper.from_array(np.int8(0), "z"))
    pair = [
        helper.make_node("QuantizeLinear", ["t1", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["middle"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["same"]),
    ]
    last = graph.node.pop()
    last.input[0] = "same"
    graph.node.extend([*pair, last])
    graph.output.append(helper.make_tensor_value_info("middle", TensorProto.FLOAT, (1, 3, 4, 4)))
    model = load_calibrated(source)
    assert [port.name for port in model.outputs] == ["y", "middle"]
    (item,) = model.calibrations.values()
    assert (item.output, item.users) == ("middle", ("c",))
    module = import_onnx(source)
    assert [item.name for item in module[0].outputs] == ["y", "middle"]
