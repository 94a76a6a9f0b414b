"""What a user does with a model: prepare, calibrate, take the fake-quantize out, go to integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import qtune
from qtune.bpu.ort import run_in_onnxruntime
from qtune.capture.structure import flatten_named
from qtune.hbir.feeding import bind_call
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantize,
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import convert, export, pre_export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

INT8 = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qtune.qint8}, freeze=True)])
INT16 = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": qtune.qint16}, freeze=True)])
EVERYWHERE = {qtune.qint8: INT8, qtune.qint16: INT16}
"""Setters that give every activation one dtype; no high-precision output."""

STEP = 1 + 1e-3
"""Factor on a bound of whole or half steps, for the float32 rounding of ``code * scale``."""


def s8(absmax: float) -> float:
    """The qint8 scale of an observed absmax."""
    return float(torch.tensor(absmax, dtype=torch.float32) / 127.5)


def s16(absmax: float) -> float:
    """The qint16 scale of an observed absmax."""
    return float(torch.tensor(absmax, dtype=torch.float32) / 32767.5)


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a nested result, in order."""
    return [leaf for _, leaf in flatten_named(value) if isinstance(leaf, Tensor)]


def run(model: nn.Module, data: Any) -> Any:
    """``data``: a tensor, or a tuple of the positional arguments."""
    with torch.no_grad():
        return model(*(data if isinstance(data, tuple) else (data,)))


def prep(model: nn.Module, example: Any, setter: QconfigSetter | None = None) -> PreparedModel:
    return prepare(model.eval(), example, setter).eval()


def calib(model: nn.Module, data: Iterable[Any]) -> None:
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    for item in data:
        run(model, item)
    set_fake_quantize(model, FakeQuantState.VALIDATION)


def calibrated(model: nn.Module, data: Any, setter: QconfigSetter | None = None) -> PreparedModel:
    prepared = prep(model, data, setter)
    calib(prepared, [data])
    return prepared


def off(model: nn.Module) -> nn.Module:
    """All fake-quantize off: the model must equal the float model."""
    set_fake_quantize(model.eval(), FakeQuantState._FLOAT)
    return model


def stubs(model: nn.Module) -> dict[tuple[str, str], FakeQuantize]:
    return {(name, kind): quantizer for name, kind, quantizer in iter_stubs(model)}


def scales(model: nn.Module) -> dict[tuple[str, str], Tensor]:
    return {key: quantizer.scale.clone() for key, quantizer in stubs(model).items()}


def scale_of(model: nn.Module, name: str, kind: str = "output") -> float:
    return float(stubs(model)[name, kind].scale)


def random_bn(channels: int) -> nn.BatchNorm2d:
    """A batch norm whose folding can't go unnoticed."""
    bn = nn.BatchNorm2d(channels)
    bn.running_mean.uniform_(-1, 1)
    bn.running_var.uniform_(0.5, 2)
    nn.init.uniform_(bn.weight, 0.5, 1.5)
    nn.init.uniform_(bn.bias, -1, 1)
    return bn


def ref_fq(x: Tensor, scale: Any, low: int = -128, high: int = 127) -> Tensor:
    """Numerics.md section 1, written down once more."""
    return torch.clamp(torch.floor(x / scale + 0.5), low, high) * scale


def quantized_module(model: PreparedModel, example: Any) -> HbirModule:
    return convert(export(model, example))


def to_integer(model: PreparedModel, example: Any, *inputs: Any) -> list[Any]:
    """The integer model's results for ``inputs`` (default: for ``example``).

    On the way every stage is held against its neighbours: qat.bc equals the pre-export model, and
    the fast kernels, the NumPy reference and ONNX Runtime agree, each in every bit.
    """
    qat, table_model = export(model, example), pre_export(model)
    module = convert(qat)
    found = []
    for data in inputs or (example,):
        args = data if isinstance(data, tuple) else (data,)
        expected = tensors(run(table_model, data))
        assert all(map(same, tensors(qat[0](*args)), expected)), "qat.bc differs from pre_export"
        found.append(module[0](*args))
        _oracles_agree(module, args, tensors(found[-1]))
    return found


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def _oracles_agree(module: HbirModule, args: tuple[Any, ...], fast: list[Tensor]) -> None:
    feed = bind_call(module[0], args, {})
    exact = module[0].run(feed, mode="reference")
    arrays = {name: value.contiguous().numpy() for name, value in feed.items()}
    by_ort = run_in_onnxruntime(module, arrays)
    for value, item in zip(fast, module[0].outputs, strict=True):
        assert same(value, exact[item.name]), f"{item.name}: fast kernels and reference differ"
        np.testing.assert_array_equal(value.numpy(), by_ort[item.name], err_msg=item.name)
