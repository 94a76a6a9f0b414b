"""Standard models made of calibrated ones: QuantizeLinear and DequantizeLinear, zero points 0."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtune.hbir import hz_calibration


def as_pairs(proto: onnx.ModelProto, *, stored: str = "") -> onnx.ModelProto:
    """Each HzCalibration of 8 bits as a pair; of the weight ``stored`` only the codes are kept."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for part in (model.graph.node, model.functions, model.graph.initializer, model.opset_import):
        del part[:]
    model.opset_import.append(helper.make_opsetid("", 21))
    model.graph.initializer.extend(t for t in proto.graph.initializer if t.name != stored)
    weights = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type != "HzCalibration":
            model.graph.node.append(node)
            continue
        held, tensor = hz_calibration.calibration_of(node), node.input[0]
        scale = held.scales if held.axis >= 0 else held.scales.reshape(())
        constants = {f"{tensor}_s": scale, f"{tensor}_z": np.zeros(scale.shape, np.int8)}
        axis = {"axis": held.axis} if held.axis >= 0 else {}
        grid = [f"{tensor}_s", f"{tensor}_z"]
        if tensor == stored:
            codes = np.round(weights[tensor] / held.along(weights[tensor].ndim))
            constants[f"{tensor}_quantized"] = np.clip(codes, -128, 127).astype(np.int8)
        else:
            model.graph.node.append(
                helper.make_node(
                    "QuantizeLinear",
                    [tensor, *grid],
                    [f"{tensor}_quantized"],
                    f"Q_{tensor}",
                    **axis,
                )
            )
        model.graph.node.append(
            helper.make_node(
                "DequantizeLinear",
                [f"{tensor}_quantized", *grid],
                [node.output[0]],
                f"D_{tensor}",
                **axis,
            )
        )
        model.graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in constants.items()
        )
    return model


def pairs_of(calibrations: Iterable[str]) -> set[str]:
    """The names of the standard nodes of calibration nodes."""
    tensors = [name.removesuffix("_HzCalibration") for name in calibrations]
    return {f"{kind}_{tensor}" for tensor in tensors for kind in "QD"}
