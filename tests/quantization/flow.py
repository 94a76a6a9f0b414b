"""The usual steps of a test: prepare, calibrate, and what is inside a prepared model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from qtune.capture.inputs import as_inputs
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import QATOp, iter_stubs
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize


def s8(absmax: float) -> float:
    """The qint8 scale of an observed absmax."""
    return float(torch.tensor(absmax, dtype=torch.float32) / 127.5)


def s16(absmax: float) -> float:
    return float(torch.tensor(absmax, dtype=torch.float32) / 32767.5)


def prep(model: nn.Module, example: Any, **options: Any) -> PreparedModel:
    return prepare(model.eval(), example, **options).eval()


def run(model: nn.Module, data: Any) -> Any:
    inputs = as_inputs(data)
    with torch.no_grad():
        return model(*inputs.args, **inputs.kwargs)


def calib(model: nn.Module, data: Iterable[Any]) -> None:
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    for item in data:
        run(model, item)
    set_fake_quantize(model, FakeQuantState.VALIDATION)


def off(model: nn.Module) -> None:
    set_fake_quantize(model.eval(), FakeQuantState._FLOAT)


def op(model: PreparedModel, name: str) -> QATOp:
    found = model.get_submodule(name)
    assert isinstance(found, QATOp), type(found)
    return found


def scales(model: nn.Module) -> dict[tuple[str, str], torch.Tensor]:
    return {(name, kind): q.scale.clone() for name, kind, q in iter_stubs(model)}


def out_scale(model: PreparedModel, name: str) -> float:
    quantizer = op(model, name).activation_post_process
    assert quantizer is not None, f"{name} has no output fake-quantize"
    return float(quantizer.scale)


def names(model: PreparedModel) -> list[str]:
    return [str(node.meta["name"]) for node, _ in model.operators()]
