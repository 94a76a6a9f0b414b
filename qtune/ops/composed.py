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
        return decompose(_Lowering(b, call), Bound(call.operands, call.attrs))

    return lower


class _Lowering:
    """A ``DecomposeBuilder`` whose nodes are HBIR values."""

    def __init__(self, b: Builder, call: LowerCall) -> None:
        self._b = b
        self._name = call.name
        self._facts: dict[int, tuple[tuple[int, ...], torch.dtype]] = {}
        self._kept: list[Value] = []
        names = call.input_dtypes or ("float32",) * len(call.operands)
        for value, shape, name in zip(call.operands, call.input_shapes, names, strict=True):
            if shape is not None and value is not None:
                self._note(value, shape, getattr(torch, name or "float32"))

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
        return self._lower(registry.spec(op_name), Bound(tuple(tensors), dict(attrs or {})))

    def is_tensor(self, value: Any) -> bool:
        return id(value) in self._facts

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return self._facts[id(tensor)][0]

    def dtype(self, tensor: Any) -> Any:
        return self._facts[id(tensor)][1]

    def items(self, result: Any) -> tuple[Any, ...]:
        return tuple(result)

    def constant(self, value: Any, *, part: str) -> Any:
        array = value.cpu().numpy()
        return self._note(self._b.constant(array, part), array.shape, value.dtype)

    def is_constant(self, tensor: Any) -> bool:
        return getattr(tensor, "const_value", None) is not None

    def known(self, tensor: Any) -> Any:
        constant = getattr(tensor, "const_value", None)
        return None if constant is None else torch.from_numpy(np.array(constant.numpy()))

    def made_by(self, tensor: Any) -> tuple[str, Bound] | None:
        return None

    def float_call(
        self, function: Callable[..., Any], args: Sequence[Any], *, part: str, reason: str
    ) -> Any:
        found = registry.find_function(function)
        if found is None:
            raise ExportError(f"{self._name}: {function} has no lowering; replace it in the model")
        return self._lower(found[0], found[1].bind(*args))

    def require_size(self, tensor: Any, dim: int, why: str) -> int:
        return self.shape(tensor)[dim]  # sizes of an exported graph are those of the example

    def require(self, check: Callable[..., bool], tensor: Any, why: str) -> None:
        """Nothing to check later: what is constant in an exported graph stays as it is."""

    def _lower(self, spec: OpSpec, bound: Bound) -> Any:
        if spec.lower is None or spec.float_kernel is None:
            raise ExportError(f"{self._name}: its part {spec.name} has no lowering")
        metas = [self._meta(value) for value in bound.tensors]
        example = spec.float_kernel(*metas, **bound.attrs)
        shapes = tuple(self.shape(v) if self.is_tensor(v) else None for v in bound.tensors)
        dtypes = tuple(_dtype_name(m) for m in metas)
        first = example[0] if isinstance(example, tuple) else example
        call = LowerCall(self._name, bound.tensors, bound.attrs, shapes, tuple(first.shape), dtypes)
        result = spec.lower(self._b, call)
        if isinstance(example, tuple):
            pairs = zip(result, example, strict=True)
            return tuple(self._note(value, tuple(e.shape), e.dtype) for value, e in pairs)
        return self._note(result, tuple(example.shape), example.dtype)

    def _meta(self, value: Any) -> Any:
        if not self.is_tensor(value):
            return value
        return torch.empty(self.shape(value), dtype=self.dtype(value), device="meta")

    def _note(self, value: Value, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        self._facts[id(value)] = (tuple(shape), dtype)
        self._kept.append(value)  # an id is only unique while its object lives
        return value


def _dtype_name(meta: Any) -> str | None:
    return str(meta.dtype).removeprefix("torch.") if isinstance(meta, torch.Tensor) else None
