"""A float model through every stage to integers, run on every path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint16
from qtune.hbir.module import HbirModule
from qtune.nn.prepared import PreparedModel
from qtune.quantization import QconfigSetter, get_qconfig
from qtune.quantization.hbdk4 import convert, export, pre_export
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from tests.quantization.flow import calib, off, prep, run


class Whole(nn.Module):
    """``operator`` as a part of a model."""

    def __init__(self, operator: nn.Module) -> None:
        super().__init__()
        self.m = operator

    def forward(self, x: Tensor) -> Tensor:
        return self.m(x)


@dataclass
class Line:
    """The model at its stages, and its results on ``x``."""

    x: Tensor
    model: nn.Module
    prepared: PreparedModel
    quantized: HbirModule

    @staticmethod
    def of(operator: nn.Module, x: Tensor, dtype: QuantDType = qint16) -> Line:
        model = Whole(operator).eval()
        setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": dtype})])
        prepared = prep(model, x, qconfig_setter=setter)
        assert prepared.float_ops == ()
        calib(prepared, [x])
        return Line(x, model, prepared, convert(export(prepared, (x,)), "nash-e"))

    @property
    def reference(self) -> Tensor:
        """What the float model gives."""
        result: Tensor = run(self.model, self.x)
        return result

    def integers(self) -> Tensor:
        """The integer model's result, the same on the fast and the plain path and elsewhere."""
        function = self.quantized[0]
        (feed,) = function.inputs
        fast = next(iter(function.run({feed.name: self.x}).values()))
        plain = next(iter(function.run({feed.name: self.x}, mode="reference").values()))
        other = next(iter(run_in_onnxruntime(self.quantized, {feed.name: self.x.numpy()}).values()))
        assert torch.equal(fast, plain)
        assert np.array_equal(fast.numpy(), other)
        assert fast.shape == self.reference.shape
        return fast

    def float_state(self) -> Tensor:
        """The prepared model in the state ``_FLOAT``; it stays in it."""
        off(self.prepared)
        result: Tensor = run(self.prepared, self.x)
        return result

    def looked_up(self) -> Tensor:
        """The pre-exported model's result."""
        result: Tensor = run(pre_export(self.prepared), self.x)
        return result

    def parts(self) -> list[str]:
        """Names of the parts of the operator."""
        names = [op.name for _, op in self.prepared.operators()]
        return [name.rpartition(".")[2] for name in names if name.startswith(("m.", "_generated"))]


def sqnr_db(got: Tensor, reference: Tensor) -> float:
    """Signal to quantization noise in dB."""
    a, b = got.double(), reference.double()
    return float(10 * torch.log10(b.square().sum() / (a - b).square().sum()))


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)  # type: ignore[operator, no-any-return]
