"""Inputs that a camera's units deliver: planes of bytes in place of the QuantStub's picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qtune.dtype import qint8
from qtune.errors import ConvertError
from qtune.hbir.builder import META_DTYPE, META_OP, META_SCALE
from qtune.hbir.module import HbirModule
from qtune.hbir.passes.image import UNIT
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized.call import call_of
from qtune.nn.quantized.frozen import Grid, freeze
from qtune.nn.quantized.lower import lowered_call, without_border

DDR, PYRAMID, RESIZER = "ddr", "pyramid", "resizer"
Ports = tuple[tuple[str, torch.Tensor], ...]
"""Names of inputs in the joined program, each with an empty tensor of its form."""


@dataclass(frozen=True, slots=True)
class CameraStub:
    """A QuantStub as the program that makes its codes of planes."""

    module: HbirModule
    inputs: Ports


def camera_stub(stub: HbirModule, picture: torch.Tensor, name: str, source: str) -> CameraStub:
    """The program in the place of ``stub``, which quantizes ``picture``, the input ``name``.

    ``pyramid`` gives ``insert_image_convert``, ``resizer`` gives ``insert_roi_resize`` with a
    source of the picture's size: ``nv12`` planes of 3 channels, one ``gray`` plane of 1. The codes
    are ``pixel - 128`` at the scale 1/128 (numerics.md section 3, "pictures"). Raises
    ``ConvertError`` where the input does not go to a QuantStub of that scale.
    """
    _check_stub(stub, name, source)
    op = QATOp("quant_stub", _name_of(stub), {"scale": None})
    op.activation_post_process = Grid(torch.tensor(UNIT), qint8)  # type: ignore[assignment]
    module = lowered_call(call_of(freeze(op), (picture.detach(),), {}))
    argument = module[0].inputs[0]
    argument.name = name
    mode = "gray" if picture.shape[1] == 1 else "nv12"
    if source == PYRAMID:
        argument.insert_image_convert(mode)
    else:
        argument.insert_roi_resize(mode)
    planes: Ports = tuple(
        (item.name, torch.empty(item.shape, dtype=getattr(torch, item.dtype)))
        for item in module[0].inputs
    )
    sources = [plane for plane, _ in planes]
    return CameraStub(without_border(module, sources, str(stub.march)), planes)


def _name_of(stub: HbirModule) -> str:
    return next(node.metadata_props[META_OP] for node in stub.model.graph)


def _check_stub(stub: HbirModule, name: str, source: str) -> None:
    nodes: Sequence[Any] = [node for node in stub.model.graph if node.op_type != "Identity"]
    props = nodes[0].outputs[0].metadata_props if nodes else {}
    is_unit = props.get(META_DTYPE) == str(qint8) and float(props.get(META_SCALE, 0)) == UNIT
    if [node.op_type for node in nodes] != ["Quantize"] or not is_unit:
        raise ConvertError(
            f"input_source {source!r}: {name} must go straight to QuantStub(scale=1 / 128) of "
            f"qint8, but {_name_of(stub)} takes it; camera images are codes pixel - 128"
        )
