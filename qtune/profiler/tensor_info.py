"""Tensors as values: copies of their real numbers, how they are quantized, and their statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qtune.nn.qat.op import fake_quantizes
from qtune.nn.quantized.qtensor import QTensor
from qtune.profiler.op_info import TensorInfo

_WIDE = frozenset({torch.float32, torch.float64})
"""Dtypes that torch computes mean and variance of with enough digits."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor when it was seen: a copy of its real numbers on the CPU; nothing changes it later.

    ``scale``: one for each channel along ``ch_axis``, or one; ``None`` for what is not quantized.
    """

    value: Tensor
    dtype: str
    scale: tuple[float, ...] | None = None
    ch_axis: int = -1

    @classmethod
    def of(cls, tensor: Tensor, port: Any = None) -> Seen:
        """``port``: the fake-quantize that the values come from; codes tell their own scale."""
        if isinstance(tensor, QTensor):
            real = tensor.dequantize().cpu()
            return cls(real, str(tensor.dtype), tensor.scales, tensor.ch_axis)
        own = tensor.detach()
        is_dense = own.layout is torch.strided
        plain = own.as_subclass(Tensor).clone() if is_dense else own.to_dense()
        plain = plain if plain.is_meta else plain.cpu()
        if not fake_quantizes(port):
            return cls(plain, str(plain.dtype))
        scales = tuple(port.scale.detach().reshape(-1).tolist())
        return cls(plain, str(port.dtype), scales, port.ch_axis if len(scales) > 1 else -1)

    @property
    def one_scale(self) -> float | None:
        """The scale, where there is just one."""
        return self.scale[0] if self.scale is not None and len(self.scale) == 1 else None

    def info(self, attr: str) -> TensorInfo:
        """The tensor in numbers."""
        value = self.value
        shape, facts = tuple(value.shape), (self.scale, self.ch_axis)
        if value.numel() == 0 or value.is_complex() or value.is_meta:
            return TensorInfo(attr, self.dtype, shape, *facts)
        low, high = torch.aminmax(value if value.dtype != torch.bool else value.byte())
        wide = value if value.dtype in _WIDE else value.double()
        mean = wide.mean()
        var = wide.var() if value.numel() > 1 else torch.zeros(())
        numbers = (float(low), float(high), float(mean), float(var))
        finite = math.isfinite(numbers[2])  # the mean of anything else is NaN or infinite
        odd = (0, 0) if finite else (int(value.isnan().sum()), int(value.isinf().sum()))
        return TensorInfo(attr, self.dtype, shape, *facts, *numbers, *odd)


def named_tensors(attr: str, operands: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The tensors (or :class:`Seen`) of ``operands`` as ``attr``, ``attr-0``, ``attr-0-1``, ...

    The bare ``attr`` where there is one operand, which is a tensor itself.
    """
    holding = {k: v for k, v in operands.items() if next(leaves(v), None) is not None}
    single = len(holding) == 1 and all(_is_leaf(value) for value in holding.values())
    for key, value in holding.items():
        yield from _named(attr if single else f"{attr}-{key}", value)


def leaves(value: Any) -> Iterator[Any]:
    """Every tensor or :class:`Seen` in nested tuples, lists and mappings."""
    return (leaf for _, leaf in _named("", value))


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if _is_leaf(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(f"{name}-{key}", item)
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _named(f"{name}-{index}", item)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Tensor | Seen)
