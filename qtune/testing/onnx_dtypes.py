"""What the nodes of a calibrated ONNX model read and give: dtypes by port."""

from __future__ import annotations

from collections.abc import Iterator

from qtune.hbir.builder import META_DTYPE, META_OP, META_RESULT
from qtune.hbir.module import HbirModule
from qtune.qconfig.dtypes import Float
from qtune.testing.model_ports import ModelPort
from qtune.testing.onnx_model import OnnxModel
from qtune.testing.onnx_ports import OUTPUT, calibration_ports, dtype_of

_FLOAT = str(Float.PORT)


def onnx_dtypes(model: OnnxModel) -> list[ModelPort]:
    """Every port of every ordinary node in order: operands, weight, result.

    What joins a fused group has the group's result, as its HBIR module says; an operand that no
    calibration node brings to a grid is float.
    """
    held = model.calibrated
    ports = calibration_ports(held)
    groups, results = model.hbir[0].groups(), dict(_results(model.hbir))
    found = []
    for node in held.nodes:
        for kind, name in ((k, ports[n, k]) for n, k in ports if n == node.name and k != OUTPUT):
            found.append(ModelPort(node.name, kind, dtype_of(held.calibrations[name]), None))
        grid = ports.get((groups.get(node.name, node.name), OUTPUT))
        # the codes of a pair with a zero point are carried in a wider dtype
        dtype = results.get(node.name) if grid is None else dtype_of(held.calibrations[grid])
        if dtype is not None:
            found.append(ModelPort(node.name, OUTPUT, dtype, None))
    return found


def high_precision(model: OnnxModel) -> set[str]:
    """The nodes that give an output of the model that no calibration node brings to a grid."""
    held = model.calibrated
    names = {port.name for port in held.outputs}
    return {node.name for node in held.nodes if not names.isdisjoint(node.outputs)}


def _results(module: HbirModule) -> Iterator[tuple[str, str]]:
    """Operator -> dtype of its result, or of its group's."""
    own = {
        node.metadata_props[META_OP]: node.outputs[0].metadata_props.get(META_DTYPE, _FLOAT)
        for node in module.model.graph
        if META_RESULT in node.metadata_props
    }
    for name, group in module[0].groups().items():
        yield name, own.get(group, own.get(name, _FLOAT))
