"""The result of every node of an ONNX model, under the names that its HBIR modules have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch

from qtune.bpu.ort import new_session
from qtune.capture.inputs import Inputs, naming
from qtune.onnx_debug.calibrated import CalibrationNode
from qtune.profiler.record import Observation, OpRecord
from qtune.report.progress import progress
from qtune.testing.onnx_model import CALIBRATED, OnnxModel, as_array, feed_of

Array = np.ndarray[Any, Any]
_OF_INPUT = "_quant"
"""Behind the name of an input: what the import calls the operator that quantizes it."""


@dataclass(frozen=True, slots=True)
class _Result:
    """A node's result: the tensor that holds it, on its grid if it has one."""

    name: str
    op_type: str
    tensor: str
    grid: CalibrationNode | None
    owner: str


def observe_onnx(model: OnnxModel, inputs: Sequence[Inputs]) -> Iterator[Observation]:
    """One observation for each call; a float model's is that of its fused form.

    Records have the names of nodes (``:1`` for a second result), as the modules that ``import``
    makes of the model; what quantizes the input ``x`` is ``x_quant``, in a float model the input
    itself. Of a calibrated model the values are those behind the calibration node. Held in memory
    are all results of one call.
    """
    shown: OnnxModel | None = None
    for index, call in enumerate(progress(inputs, "run", unit="batch")):
        if shown is not model.fused(call):
            shown = model.fused(call)
            results = list(_results(shown))
            session = _showing(shown, results)
        feed = {k: as_array(v) for k, v in feed_of(shown.inputs, call.args, call.kwargs).items()}
        with naming(f"batch {index} of inputs", call):
            values = feed | session(feed)
        outputs = {name: torch.from_numpy(values[name]) for name in shown.outputs}
        records = {item.name: _record(item, values[item.tensor]) for item in results}
        yield Observation(outputs, records)


def _record(item: _Result, value: Array) -> OpRecord:
    grid = item.grid
    scale = None if grid is None or grid.axis >= 0 else float(grid.scales[0])
    dtype = f"torch.{value.dtype}" if grid is None else f"qint{grid.bits}"
    tensor = torch.from_numpy(np.ascontiguousarray(value))
    return OpRecord(item.name, item.op_type, tensor, scale, dtype, owner=item.owner)


def _results(model: OnnxModel) -> Iterator[_Result]:
    grids = _first_grids(model)
    for port in model.inputs:
        grid = grids.get(port.name)
        if grid is not None or model.kind != CALIBRATED:
            name = f"{port.name}{_OF_INPUT}"
            yield _Result(name, "", port.name if grid is None else grid.output, grid, name)
    inside = _calibrating(model)
    for node in model.proto.graph.node:
        if node.op_type == "Constant" or not inside.isdisjoint(node.output):
            continue
        for index, tensor in enumerate(node.output):
            if tensor:
                grid = grids.get(tensor)
                name = f"{node.name}:{index}" if index else node.name
                shown = tensor if grid is None else grid.output
                yield _Result(name, f"onnx.{node.op_type}", shown, grid, node.name)


def _first_grids(model: OnnxModel) -> dict[str, CalibrationNode]:
    """The calibration node of each tensor; of several the first."""
    found: dict[str, CalibrationNode] = {}
    if model.kind == CALIBRATED:
        for item in model.calibrated.calibrations.values():
            found.setdefault(item.source, item)
    return found


def _calibrating(model: OnnxModel) -> set[str]:
    """The tensors that calibration nodes make."""
    if model.kind != CALIBRATED:
        return set()
    nodes = (node for item in model.calibrated.calibrations.values() for node in item.nodes)
    return {name for node in nodes for name in node.output}


def _showing(
    model: OnnxModel, results: Sequence[_Result]
) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """A function from inputs to the tensors of these results and the outputs, by name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model.proto)
    known = [info.name for info in copy.graph.output]
    given = {*known, *(port.name for port in model.inputs)}
    more = [n for n in dict.fromkeys(item.tensor for item in results) if n not in given]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    session = new_session(copy.SerializeToString(), optimized=model.kind != CALIBRATED)
    names = [*known, *more]

    def run(feed: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, dict(feed)), strict=True))

    return run
