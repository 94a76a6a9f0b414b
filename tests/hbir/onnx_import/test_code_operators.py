"""Files of onnxruntime's QOperator format: operators on codes become pairs, and integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import QuantFormat

from qtune.bpu import compiler
from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug import load_calibrated

from .quantized_files import NETS, quantized_file, samples
from .single_nodes import make, model_of, normal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("q_operators")


@pytest.mark.parametrize(
    ("net", "style"),
    [
        ("plain", "uint8_per_channel"),
        ("branches", "int8_zero_point"),
        ("tokens", "int8_symmetric_per_channel"),
    ],
)
def test_a_network_of_operators_on_codes_gives_onnxruntimes_numbers(
    folder: Path, net: str, style: str
) -> None:
    path = quantized_file(folder, net, style, QuantFormat.QOperator)
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert kinds & {"QLinearConv", "QLinearMatMul"}
    x = samples(NETS[net][1], 9)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    module = compiler.load(path)
    integers = compiler.convert(module, "nash-e")
    step = np.unique(np.abs(np.diff(np.unique(expected)))).min()
    for got in (module(x)[0], integers[0].feed({"x": x})["y"]):
        # ties fall to even there, upwards on the BPU: one step, and seldom
        difference = np.abs(np.asarray(got) - expected)
        assert difference.max() <= step * 1.001
        assert (difference > step / 2).mean() < 0.05
    kinds = {node.op_type for node in integers.model.graph}
    assert any(kind.startswith(("QConv", "QLinear")) for kind in kinds)


def test_the_debugger_finds_the_grids_of_operators_on_codes(folder: Path) -> None:
    path = quantized_file(folder, "tokens", "int8_symmetric_per_channel", QuantFormat.QOperator)
    kinds = [item.kind for item in load_calibrated(path).calibrations.values()]
    assert kinds.count("weight") == 4  # two matrices, two addends
    assert kinds.count("activation") >= 3


def test_channels_behind_the_map_are_refused_by_name() -> None:
    x = normal(1, 4, 4, 3)
    grid = {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make("QLinearGlobalAveragePool", ["q", "s", "z", "s", "z"], ["r"], name="mean",
             domain="com.microsoft", channels_last=1),
        make("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]  # fmt: skip
    proto = model_of(nodes, x, grid)
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, (1, 1, 1, 3)))
    with pytest.raises(OnnxImportError, match="mean: .*channels_last=1 has no form"):
        import_onnx(proto)
