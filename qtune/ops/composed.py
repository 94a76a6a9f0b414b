"""Lowers a composed operator to float HBIR by the operators that it decomposes into.

What stays outside the quantized region is written with the same parts that ``prepare`` would put
in its place, so that a composed operator is described once, by its ``decompose``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qtune.dtype import QuantDType
from qtune.errors import ExportError
from qtune.ops import registry
from qtune.ops.kernel import Builder, LowerCall, Value
from qtune.ops.spec import Bound, DecomposeBuilder, OpSpec

Decompose = Callable[[DecomposeBuilder, Bound], Any]


def lower_by_parts(decompose: Decompose) -> Callable[[Builder, LowerCall], Any]:
    """``OpSpec.lower`` of an operator with this ``decompose``."""

    def lower(b: Builder, call: LowerCall) -> Any:
        return decompose(PartsLowering(b, call), Bound(call.operands, call.attrs))

    return lower


class PartsLowering:
    """A ``DecomposeBuilder`` whose nodes are HBIR values: every part is emitted by its lowering.

    Methods without more to say do what those of :class:`DecomposeBuilder` do.
    """

    def __init__(self, b: Builder, call: LowerCall) -> None:
        self._b = b
        self.name = call.name
        self._facts: dict[int, tuple[tuple[int, ...], torch.dtype]] = {}
        self._kept: list[Value] = []
        names = call.input_dtypes or ("float32",) * len(call.operands)
        for value, shape, name in zip(call.operands, call.input_shapes, names, strict=True):
            if shape is not None and value is not None:
                self.note(value, shape, getattr(torch, name or "float32"))

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
        """Lower a part; dtype and bounds mean nothing in float."""
        return self.lower(registry.spec(op_name), Bound(tuple(tensors), dict(attrs or {})))

    def is_tensor(self, value: Any) -> bool:
        """Whether ``value`` was noted."""
        return id(value) in self._facts

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The shape that was noted."""
        return self._facts[id(tensor)][0]

    def dtype(self, tensor: Any) -> Any:
        """The dtype that was noted."""
        return self._facts[id(tensor)][1]

    def items(self, result: Any) -> tuple[Any, ...]:
        """The values themselves."""
        return tuple(result)

    def constant(self, value: Any, *, part: str) -> Any:
        """An initializer."""
        array = value.cpu().numpy()
        return self.note(self._b.constant(array, part), array.shape, value.dtype)

    def is_constant(self, tensor: Any) -> bool:
        """Whether it is an initializer."""
        return getattr(tensor, "const_value", None) is not None

    def known(self, tensor: Any) -> Any:
        """The data of an initializer."""
        constant = getattr(tensor, "const_value", None)
        return None if constant is None else torch.from_numpy(np.array(constant.numpy()))

    def made_by(self, tensor: Any) -> tuple[str, Bound] | None:
        """Not told: nodes before the call are no operators here."""
        return None

    def float_call(
        self, function: Callable[..., Any], args: Sequence[Any], *, part: str, reason: str
    ) -> Any:
        """Lower the function's operator."""
        found = registry.find_function(function)
        if found is None:
            raise ExportError(f"{self.name}: {function} has no lowering; replace it in the model")
        return self.lower(found[0], found[1].bind(*args))

    def require_size(self, tensor: Any, dim: int, why: str) -> int:
        """The size: those of an exported graph are the example's."""
        return self.shape(tensor)[dim]

    def require(self, check: Callable[..., bool], tensor: Any, why: str) -> None:
        """Nothing to check later: what is constant in an exported graph stays as it is."""

    def lower(self, spec: OpSpec, bound: Bound) -> Any:
        """The value, or the tuple of values, of one call."""
        if spec.lower is None or spec.float_kernel is None:
            raise ExportError(f"{self.name}: its part {spec.name} has no lowering")
        metas = [self._meta(value) for value in bound.tensors]
        example = spec.float_kernel(*metas, **bound.attrs)
        shapes = tuple(self.shape(v) if self.is_tensor(v) else None for v in bound.tensors)
        dtypes = tuple(_dtype_name(m) for m in metas)
        first = example[0] if isinstance(example, tuple) else example
        call = LowerCall(self.name, bound.tensors, bound.attrs, shapes, tuple(first.shape), dtypes)
        result = spec.lower(self._b, call)
        if isinstance(example, tuple):
            pairs = zip(result, example, strict=True)
            return tuple(self.note(value, tuple(e.shape), e.dtype) for value, e in pairs)
        return self.note(result, tuple(example.shape), example.dtype)

    def _meta(self, value: Any) -> Any:
        if not self.is_tensor(value):
            return value
        return torch.empty(self.shape(value), dtype=self.dtype(value), device="meta")

    def note(self, value: Value, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        """Take down shape and dtype of a value, and return it."""
        self._facts[id(value)] = (tuple(shape), dtype)
        self._kept.append(value)  # an id is only unique while its object lives
        return value


def _dtype_name(meta: Any) -> str | None:
    return str(meta.dtype).removeprefix("torch.") if isinstance(meta, torch.Tensor) else None
