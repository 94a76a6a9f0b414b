"""Thresholds that the configuration fixes (``node_config: threshold``), and what they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qtune.arith.quantize import scale_from_threshold
from qtune.errors import ArgumentError
from qtune.hbir.hz_calibration import Calibration
from qtune.onnx_debug.build.config import ROOT, NodeSetting
from qtune.onnx_debug.build.insert import DTYPES
from qtune.onnx_debug.build.kept import Kept
from qtune.onnx_debug.build.march import Fitted
from qtune.onnx_debug.build.place import Place
from qtune.onnx_debug.calibrated import ACTIVATION


def fixed_grid(threshold: float, bits: int) -> Calibration:
    """The grid of a threshold that somebody fixed: ``T / 128`` for int8, ``T / 32768`` for int16.

    Observed ranges are divided by half a step less (``insert.grid_of``); numerics.md section 1.
    """
    thresholds = np.asarray([threshold], np.float32)
    scales = np.asarray(scale_from_threshold(thresholds, DTYPES[bits]), np.float32)
    return Calibration(scales, thresholds, bits)


def fixed_thresholds(nodes: Mapping[str, NodeSetting], fit: Fitted) -> dict[str, float]:
    """Tensor whose range a calibration node has (``Place.root``) -> threshold.

    Raises ``ArgumentError`` for inputs without a calibration node of the build, and where two
    entries fix the threshold of one tensor to different numbers.
    """
    there = {node.name: node for node in fit.proto.graph.node}
    found: dict[str, float] = {}
    owners: dict[str, str] = {}
    for name, setting in nodes.items():
        if not setting.thresholds or (name not in there and not _parts(name, fit)):
            continue  # gone in the optimized model, which was logged
        for index, value in setting.thresholds.items():
            where = f"{ROOT}: node_config: {name}"
            root = _place(where, name, index, fit).root
            if found.setdefault(root, value) != value:
                raise ArgumentError(
                    f"{where}: threshold {value:g}, but {owners[root]} fixes that of the same "
                    f"tensor {root!r} to {found[root]:g}"
                )
            owners.setdefault(root, name)
    return found


def _place(where: str, name: str, index: int, fit: Fitted) -> Place:
    parts = _parts(name, fit)
    if parts:
        raise ArgumentError(
            f"{where}: threshold: the node runs in parts; name one of them: {', '.join(parts)}"
        )
    places = [
        place
        for place in fit.placement.places
        if place.kind == ACTIVATION
        and any(slot[0] == name and index in (-1, slot[1]) for slot in place.slots)
    ]
    if len(places) == 1:
        return places[0]
    if places:
        inputs = sorted(s[1] for place in places for s in place.slots if s[0] == name)
        raise ArgumentError(
            f"{where}: threshold: the node reads several tensors; say which, such as "
            f"input{inputs[0]}: {{'threshold': ...}} (it has {_listed(inputs)})"
        )
    raise ArgumentError(f"{where}: threshold: {_reason(name, index, fit)}")


def _reason(name: str, index: int, fit: Fitted) -> str:
    if name in fit.placement.floats:
        return f"the node stays float: {fit.placement.floats[name]}"
    node = next(item for item in fit.proto.graph.node if item.name == name)
    if any(tensor in fit.kept.grids for tensor in node.input):
        return "what the node reads lies on a grid of the file, which stays"
    own = sorted(
        slot[1]
        for place in fit.placement.places
        if place.kind == ACTIVATION
        for slot in place.slots
        if slot[0] == name
    )
    what = "the node" if index < 0 else f"input{index}"
    return (
        f"{what} has no calibration node (constants have the threshold of their largest magnitude, "
        f"fused operators none); those with one are {_listed(own) or 'none'}"
    )


def _parts(name: str, fit: Fitted) -> list[str]:
    return [part for part, info in fit.parts.items() if info.origin == name != part]


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(f"input{index}" for index in indices)


def refuse_changes(nodes: Mapping[str, NodeSetting], fit: Fitted, kept: Kept) -> None:
    """Raise ``ArgumentError`` for entries that ask for other dtypes than those of the file."""
    there = {node.name: node for node in fit.proto.graph.node}
    for name, setting in nodes.items():
        where = f"{ROOT}: node_config: {name}"
        if name in kept.stand_ins:
            raise ArgumentError(
                f"{where}: it is the calibration of {kept.stand_ins[name].source!r} in the file, "
                "which stays as it is; name the nodes that read it"
            )
        for index, tensor in enumerate(there[name].input if name in there else ()):
            grid = kept.grids.get(tensor)
            bits = setting.inputs.get(index, setting.bits if grid and grid.stand_in else None)
            if grid is not None and bits not in (None, 32, grid.bits):
                raise ArgumentError(
                    f"{where}: input{index} is to be int{bits}, but the file has it on a grid of "
                    f"int{grid.bits}, which stays; take that out of the file, or build the float "
                    "model"
                )
