"""The debugger's document: a calibrated model and its data, then every function on them."""

import logging
from pathlib import Path

import horizon_nn.debug as dbg
import numpy as np
import onnx
from hbdk4.compiler import load
from hmct.api import build_model, check_model
from hmct.quantizer import debugger
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)
SHAPE = [1, 3, 8, 8]


def conv(name, source, result, shape):
    weight = rng.normal(0, 0.3, shape).astype(np.float32)
    bias = rng.normal(0, 0.1, shape[0]).astype(np.float32)
    stored = [numpy_helper.from_array(a, f"{name}.{n}") for a, n in ((weight, "w"), (bias, "b"))]
    inputs = [source, *(tensor.name for tensor in stored)]
    return helper.make_node("Conv", inputs, [result], name=name, pads=[1] * 4), stored


conv_0, first = conv("Conv_0", "input.1", "a", [8, 3, 3, 3])
conv_2, second = conv("Conv_2", "b", "c", [8, 8, 3, 3])
nodes = [
    conv_0,
    helper.make_node("Relu", ["a"], ["b"], name="Relu_1"),
    conv_2,
    helper.make_node("Add", ["b", "c"], ["d"], name="Add_3"),
    helper.make_node("GlobalAveragePool", ["d"], ["output"], name="GlobalAveragePool_4"),
]
graph = helper.make_graph(
    nodes,
    "net",
    [helper.make_tensor_value_info("input.1", TensorProto.FLOAT, SHAPE)],
    [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 8, 1, 1])],
    [*first, *second],
)
onnx.save(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
    "float.onnx",
)
folder = Path("calibration_data/input.1")
folder.mkdir(parents=True)
for index in range(3):
    np.save(folder / f"{index}.npy", rng.normal(0, 1, SHAPE).astype(np.float32))

check_model(onnx.load("float.onnx"), march="nash-e")
build_model(
    onnx_model=onnx.load("float.onnx"),
    march="nash-e",
    cali_data="./calibration_data/",
    quant_config={"model_config": {"activation": {"calibration_type": "max"}}},
    name_prefix="net",
    verbose=False,
)
quantized = load("net_quantized_model.bc")

logging.getLogger().setLevel(logging.INFO)
calibrated = "./net_calibrated_model.onnx"
node_message = dbg.get_sensitivity_of_nodes(
    model_or_file=calibrated,
    metrics=["cosine-similarity", "mse"],
    calibrated_data="./calibration_data/",
    output_node=None,
    node_type="node",
    data_num=None,
    verbose=True,
    interested_nodes=None,
)
weights = dbg.get_sensitivity_of_nodes(calibrated, "mse", "./calibration_data/", node_type="weight")
activations = debugger.get_sensitivity_of_nodes(
    calibrated, "mse", "./calibration_data/", node_type="activation"
)
ordinary = list(node_message.keys())

for number, chosen in enumerate(
    (
        {"quantize_node": ["Conv_0", "Conv_2"]},
        {"quantize_node": [["Conv_0"], ["Conv_0", "Conv_2"]], "average_mode": True},
        {"quantize_node": ["weight", "activation"]},
        {"non_quantize_node": ["Conv_0", "Conv_2"], "average_mode": True},
        {"non_quantize_node": [ordinary[:1], ordinary[:2]]},
    )
):
    dbg.plot_acc_error(
        save_dir=f"./acc_error_{number}",
        calibrated_data="./calibration_data/",
        model_or_file=calibrated,
        metric="cosine-similarity",
        **chosen,
    )

calibrations = [*list(activations)[:1], *list(weights)[:1]]
dbg.plot_distribution(
    save_dir="./distribution",
    model_or_file=calibrated,
    calibrated_data="./calibration_data",
    nodes_list=[*calibrations, "Conv_2"],
)
dbg.get_channelwise_data_distribution(
    save_dir="./channels",
    model_or_file=calibrated,
    calibrated_data="./calibration_data",
    nodes_list=calibrations,
    axis=None,
)
dbg.sensitivity_analysis(
    model_or_file=calibrated,
    calibrated_data="calibration_data",
    pick_threshold=0.9999,
    data_num=1,
    sensitive_nodes=[],
    save_dir="./freed",
)
dbg.tensor_analysis(calibrated, "calibration_data", ["Conv_2"], save_dir="./tensors")
dbg.runall(model_or_file=calibrated, calibrated_data="calibration_data")
