"""The float form of a calibrated model: every calibration off."""

from __future__ import annotations

import onnx
from onnx import helper, numpy_helper

from qtune.onnx_debug.calibrated import CalibratedModel
from qtune.onnx_debug.segments import Wiring
from qtune.onnx_debug.switches import Sessions


def float_form(model: CalibratedModel) -> onnx.ModelProto:
    """A copy without calibration nodes.

    Where a file holds the codes of a weight only, the weight is what they stand for.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model.proto)
    graph = made.graph
    sessions = Sessions(Wiring(model))
    inside = {name for item in model.calibrations.values() for n in item.nodes for name in n.output}
    outputs = {info.name for info in graph.output}
    renamed: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for item in model.calibrations.values():
        source = renamed.get(item.source, item.source)
        if item.is_stored:
            source = f"{item.output}_float"
            array = sessions.float_form(item.output)
            graph.initializer.append(numpy_helper.from_array(array, source))
        renamed[item.output] = source
    for node in made.graph.node:
        if inside.isdisjoint(node.output):
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            copy.input[:] = [renamed.get(name, name) for name in node.input]
            kept.append(copy)
    kept += [
        helper.make_node("Identity", [source], [name], name=f"{name}_float")
        for name, source in renamed.items()
        if name in outputs
    ]
    del graph.node[:]
    graph.node.extend(kept)
    return made
