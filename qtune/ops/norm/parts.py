"""What the normalizations share: the documented parts, and their lowering (numerics.md section 3).

Mean, difference, square, its mean, rsqrt table of ``v + eps``, product, weight, bias: every part
has a fake-quantize of its own, qint16 but for the last one, which has the configured dtype. Weight
and bias are constants in qint16, whatever the configured dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qtune.dtype import QuantDType, qint16
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.reduce.stepwise import reduced
from qtune.ops.registry import spec as registry_spec
from qtune.ops.spec import Bound, DecomposeBuilder

Decompose = Callable[[DecomposeBuilder, Bound], Any]


def standardized(
    builder: DecomposeBuilder, x: Any, dims: tuple[int, ...], eps: float, *, last: bool
) -> Any:
    """``(x - mean) / sqrt(variance + eps)`` over ``dims``; ``last`` if no part follows."""
    return by_root_mean_square(builder, centered(builder, x, dims), dims, eps, last=last)


def centered(builder: DecomposeBuilder, x: Any, dims: tuple[int, ...]) -> Any:
    """``x - mean`` over ``dims``, qint16."""
    average = reduced(builder, "mean", x, dims, part="mean")
    return builder.call("sub", (x, average), part="sub", forced_dtype=qint16)


def by_root_mean_square(
    builder: DecomposeBuilder, x: Any, dims: tuple[int, ...], eps: float, *, last: bool
) -> Any:
    """``x / sqrt(mean(x * x) + eps)`` over ``dims``; ``last`` if no part follows."""
    square = builder.call("mul", (x, x), part="square", forced_dtype=qint16)
    power = reduced(builder, "mean", square, dims, part="var")
    inverse = builder.call("rsqrt", (power,), {"eps": eps}, part="rsqrt", forced_dtype=qint16)
    return builder.call("mul", (x, inverse), part="mul", forced_dtype=None if last else qint16)


def affine(
    builder: DecomposeBuilder, x: Any, weight: Any, bias: Any, shape: tuple[int, ...] | None = None
) -> Any:
    """``x * weight + bias``, each where given, brought to ``shape`` first where that is given."""
    if weight is not None:
        weight = _shaped(builder, weight, shape, "weight_shape")
        inner = qint16 if bias is not None else None
        x = builder.call("mul", (x, weight), part="weight_mul", forced_dtype=inner)
    if bias is not None:
        bias = _shaped(builder, bias, shape, "bias_shape")
        x = builder.call("add", (x, bias), part="bias_add")
    return x


def _shaped(builder: DecomposeBuilder, vector: Any, shape: Any, part: str) -> Any:
    if shape is None:
        return vector
    return builder.call("reshape", (vector,), {"shape": shape}, part=part, forced_dtype=qint16)


def normalization_flops(
    attrs: Mapping[str, Any], input_shapes: Sequence[Any], output_shape: tuple[int, ...]
) -> int:
    """Two passes over the input, and three operations for each element of the output."""
    return 2 * int(math.prod(input_shapes[0])) + 3 * math.prod(output_shape)


def lower_by_parts(decompose: Decompose) -> Callable[[Builder, LowerCall], Any]:
    """The lowering of an operator that stays float: the float nodes of its parts."""

    def lower(b: Builder, call: LowerCall) -> Any:
        dtypes = call.input_dtypes or ("float32",) * len(call.operands)
        operands = [
            operand if shape is None else _Float(operand, shape, str(dtype))
            for operand, shape, dtype in zip(call.operands, call.input_shapes, dtypes, strict=True)
        ]
        builder: Any = _FloatParts(b, call.name)
        return decompose(builder, Bound(tuple(operands), call.attrs)).value

    return lower


@dataclass(frozen=True, slots=True)
class _Float:
    """A float value of the file, and the example's shape and dtype of it."""

    value: Any
    shape: tuple[int, ...]
    dtype: str

    def example(self) -> torch.Tensor:
        """A tensor without data."""
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device="meta")


class _FloatParts:
    """As much of a ``DecomposeBuilder`` as these operators use; it writes float nodes."""

    def __init__(self, builder: Builder, name: str) -> None:
        self.builder = builder
        self.name = name

    def call(
        self,
        op_name: str,
        tensors: Sequence[Any],
        attrs: Mapping[str, Any] | None = None,
        *,
        part: str,
        forced_dtype: QuantDType | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> Any:
        entry, attrs = registry_spec(op_name), dict(attrs or {})
        kernel: Any = entry.float_kernel
        lower: Any = entry.lower
        found = [item if isinstance(item, _Float) else None for item in tensors]
        examples = [
            item if known is None else known.example()
            for item, known in zip(tensors, found, strict=True)
        ]
        result = kernel(*examples, **attrs)
        call = LowerCall(
            f"{self.name}.{part}",
            tuple(item.value if isinstance(item, _Float) else item for item in tensors),
            attrs,
            tuple(None if known is None else known.shape for known in found),
            tuple(result.shape),
            tuple(None if known is None else known.dtype for known in found),
        )
        dtype = str(result.dtype).removeprefix("torch.")
        return _Float(lower(self.builder, call), tuple(result.shape), dtype)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, _Float)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def dtype(self, tensor: Any) -> Any:
        return getattr(torch, tensor.dtype)


def random_map(rng: np.random.Generator, channels: int) -> tuple[int, ...]:
    """A map of one, two or three spatial dimensions, with enough elements for a variance."""
    spaces = ((17,), (5, 4), (3, 7), (2, 3, 4))
    return (int(rng.integers(1, 4)), channels, *spaces[int(rng.integers(len(spaces)))])


def random_rows(rng: np.random.Generator) -> tuple[int, ...]:
    """Rows with enough elements for a variance."""
    return (int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(16, 25)))
