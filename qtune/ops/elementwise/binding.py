"""Canonical calls of torch's element-wise signatures, and what their operators share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from qtune.errors import ExportError
from qtune.ops.kernel import Builder, LowerCall, Value
from qtune.ops.spec import Bound, Sample


def unary(input: Any, inplace: bool = False) -> Bound:
    """``f(input)``."""
    return Bound((input,))


def unary_module(module: nn.Module, input: Any) -> Bound:
    """A module without attributes that matter."""
    return Bound((input,))


def binary(input: Any, other: Any) -> Bound:
    """``f(input, other)``."""
    return Bound((input, other))


def reflected(input: Any, other: Any) -> Bound:
    """``other OP input``: the reflected operator methods."""
    return Bound((other, input))


def refuse(operator: str, **options: Any) -> None:
    """Raise ``NotImplementedError`` for the first option that isn't ``None``."""
    for name, value in options.items():
        if value is not None:
            raise NotImplementedError(
                f"{operator} with {name}={value!r} has no integer form; leave {name} out, or keep "
                "the call outside the quantized region"
            )


def output_elements(
    attrs: Mapping[str, Any], input_shapes: Sequence[Any], output_shape: tuple[int, ...]
) -> int:
    """One operation per output element."""
    return math.prod(output_shape)


def input_elements(
    attrs: Mapping[str, Any], input_shapes: Sequence[Any], output_shape: tuple[int, ...]
) -> int:
    """One operation per element of the first operand."""
    return math.prod(input_shapes[0])


def is_scalar(operand: Any) -> bool:
    """Whether an operand of a ``LowerCall`` is a Python number."""
    return isinstance(operand, bool | int | float)


def operand_value(b: Builder, call: LowerCall, index: int) -> Value:
    """Return an operand as a value; a Python number becomes a constant of the tensors' dtype."""
    operand = call.operands[index]
    if not is_scalar(operand):
        return operand
    dtype = _number_dtype(call)
    if np.issubdtype(dtype, np.integer) and operand != int(operand):  # type: ignore[arg-type]
        raise ExportError(
            f"{call.name}: the number {operand!r} beside an integer tensor makes a float result, "
            "which has no HBIR form. Convert the tensor with .float() first"
        )
    return b.constant(np.asarray(operand, dtype=dtype))


def _number_dtype(call: LowerCall) -> np.dtype[Any]:
    names = [name for name in call.input_dtypes if name is not None and name != "bool"]
    return np.dtype(names[0] if names else "float32")


def sample_unary(rng: np.random.Generator) -> Sample:
    """One map of random size."""
    return Sample(((2, 3, int(rng.integers(1, 9)), int(rng.integers(1, 9))),))


def sample_binary(rng: np.random.Generator) -> Sample:
    """Two operands, the second of a shape that broadcasts."""
    channels, height, width = (int(v) for v in rng.integers(1, 7, 3))
    others = (
        (2, channels, height, width),
        (1, channels, 1, 1),
        (height, width),
        (1,),
        (2, 1, height, 1),
    )
    return Sample(((2, channels, height, width), others[int(rng.integers(len(others)))]))
