"""Constants of a graph that is being lowered: tensors that no input decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from qtune.arith.quantize import fake_quantize
from qtune.hbir.example import TensorFacts
from qtune.quantizers.fake_cast import FakeCast


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that no input decides, and the fake-quantize it passes, if any."""

    data: torch.Tensor
    quantizer: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor, for what binds a call."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor."""
        return self.data.dtype


def constant_of(fact: Any) -> Any:
    """The constant(s) of a result that no input's values decide, else ``None``."""
    if isinstance(fact, TensorFacts):
        return None if fact.data is None else Constant(fact.data)
    if isinstance(fact, tuple) and fact:
        items = tuple(constant_of(item) for item in fact)
        return None if any(item is None for item in items) else items
    return None


def real_data(constant: Constant) -> torch.Tensor:
    """The constant after its fake-quantize."""
    quantizer = constant.quantizer
    if quantizer is None:
        return constant.data
    if isinstance(quantizer, FakeCast):
        return constant.data.half().float()
    scale = quantizer.scale.detach().cpu().numpy()
    array = constant.data.cpu().numpy()
    return torch.from_numpy(fake_quantize(array, scale, quantizer.dtype, quantizer.ch_axis))


def shape_of(operand: Any) -> tuple[int, ...] | None:
    """The example's shape of a constant or a value, ``None`` of a number."""
    if isinstance(operand, Constant):
        return tuple(operand.data.shape)
    if isinstance(operand, ir.Value) and operand.shape is not None:
        return tuple(operand.shape.numpy())
    return None


def dtype_of(operand: Any) -> str | None:
    """torch's name of the dtype, ``None`` of a number."""
    if isinstance(operand, Constant):
        return str(operand.data.dtype).removeprefix("torch.")
    if isinstance(operand, ir.Value) and operand.dtype is not None:
        return str(operand.dtype.numpy())
    return None
