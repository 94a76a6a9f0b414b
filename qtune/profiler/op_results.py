"""What is recorded of one operator's result: numbers, grid, names."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from torch import Tensor, nn

from qtune.nn.qat.op import QATOp, fake_quantizes
from qtune.nn.quantized import PreservedOp, QuantizedOp
from qtune.nn.quantized.qtensor import QTensor
from qtune.profiler.record import plain
from qtune.quantizers.fake_quantize import FakeQuantize


def grid_of(quantizer: FakeQuantize | None, value: Tensor) -> tuple[float | None, str]:
    """Scale and dtype of a result. ``quantizer``: the fake-quantize that it comes from."""
    if isinstance(value, QTensor):
        return value.scales[0], str(value.dtype)
    if quantizer is None or not fake_quantizes(quantizer):
        return None, str(value.dtype)
    return float(quantizer.scale.detach().reshape(-1)[0]), str(quantizer.dtype)


def real_numbers(value: Any) -> Any:
    """Codes as the real numbers that they stand for; tensors without gradients."""
    if isinstance(value, QTensor):
        return value.dequantize()
    return plain(value.detach()) if isinstance(value, Tensor) else value


def is_operator(module: nn.Module | None) -> bool:
    """Whether a module is one operator of a prepared or converted model."""
    return isinstance(module, QATOp | QuantizedOp | PreservedOp)


def named_results(name: str, result: Any, seen: Container[str]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) pairs: ``op``; ``op:1`` for a second result; ``op_1`` for a second call.

    The HBIR modules of the model have the same names.
    """
    return ((key, value) for key, _, value in numbered_results(name, result, seen))


def numbered_results(
    name: str, result: Any, seen: Container[str]
) -> Iterator[tuple[str, int, Tensor]]:
    """As :func:`named_results`, with the number of the result."""
    results = result if isinstance(result, tuple | list) else (result,)
    base, call = name, 0
    while base in seen:
        call += 1
        base = f"{name}_{call}"
    for index, value in enumerate(results):
        if isinstance(value, Tensor):
            yield (base if index == 0 else f"{base}:{index}"), index, value


def type_name(op: nn.Module) -> str:
    """Qualified name of the operator's class."""
    return f"{type(op).__module__}.{type(op).__qualname__}"
