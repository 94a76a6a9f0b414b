"""Values of chosen tensors on the calibration data, one item at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from qtune.bpu.ort import new_session
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.report.progress import progress

Array = np.ndarray[Any, Any]

GROUP_ELEMENTS = 1 << 26
"""Most elements (256 MB) of the tensors that one session gives at a time."""


def observed(
    proto: onnx.ModelProto, data: CalibrationDataSet, tensors: Sequence[str], task: str
) -> Iterator[tuple[str, Array]]:
    """``(tensor, array)`` of all ``tensors`` for each item, one after the other.

    Tensors are taken in groups, so that memory stays bounded; each group runs the model anew.
    """
    inputs = {port.name for port in data.inputs}
    groups = _groups(proto, [name for name in tensors if name not in inputs])
    for number, group in enumerate(groups):
        session = new_session(_with_outputs(proto, group), optimized=False)
        for item in progress(data, task, unit="item", total=len(data)):
            if number == 0:
                yield from ((name, item[name]) for name in tensors if name in inputs)
            results = session.run(group, item) if group else []
            yield from zip(group, results, strict=True)
            del results


def _groups(proto: onnx.ModelProto, tensors: Sequence[str]) -> list[list[str]]:
    sizes = {
        info.name: math.prod(max(1, d.dim_value) for d in info.type.tensor_type.shape.dim)
        for info in (*proto.graph.value_info, *proto.graph.output)
    }
    groups: list[list[str]] = [[]]
    filled = 0
    for name in tensors:
        size = sizes.get(name, 1)
        if groups[-1] and filled + size > GROUP_ELEMENTS:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _with_outputs(proto: onnx.ModelProto, tensors: Sequence[str]) -> bytes:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    present = {info.name for info in copy.graph.output}
    for name in tensors:
        if name not in present:
            copy.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return bytes(copy.SerializeToString())
