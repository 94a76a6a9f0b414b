"""What max and min share: three functions of one name (all elements, a dimension, two tensors)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.reduce.reducing import axes_of
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input: Any, *args: Any, **kwargs: Any) -> Bound:
    """``f(input)``, ``f(input, dim, keepdim)`` or ``f(input, other)``."""
    if "dim" in kwargs or (args and isinstance(args[0], int)):
        return _bind_dim(input, *args, **kwargs)
    return _bind_other(input, *args, **kwargs)


def _bind_dim(input: Any, dim: int, keepdim: bool = False) -> Bound:
    return Bound((input, None), {"dim": int(dim), "keepdim": bool(keepdim)})


def _bind_other(input: Any, other: Any = None) -> Bound:
    return Bound((input, other), {"dim": None, "keepdim": False})


def extreme(name: str, onnx_op: str, function: Callable[..., Any], doc: str) -> OpSpec:
    """``torch.max`` or ``torch.min``, made of ``a<name>``, ``arg<name>`` and ``<name>imum``."""

    def float_kernel(
        input: torch.Tensor, other: Any = None, *, dim: int | None = None, keepdim: bool = False
    ) -> Any:
        if dim is not None:
            return function(input, dim, keepdim)
        return function(input) if other is None else function(input, other)

    def lower(b: Builder, call: LowerCall) -> Any:
        x, other = call.operands
        if other is not None:
            return b.add(onnx_op, [x, other])
        dim, keepdims = call.attrs["dim"], {"keepdims": int(call.attrs["keepdim"])}
        axes = axes_of(None if dim is None else (dim,), len(call.input_shapes[0] or ()))
        values = b.add(f"Reduce{onnx_op}", [x, b.constant(np.array(axes), "axes")], keepdims)
        if dim is None:
            return values
        return values, b.add(f"Arg{onnx_op}", [x], {"axis": axes[0], **keepdims})

    def decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
        x, other = bound.tensors
        dim, keepdim = bound.attrs["dim"], bound.attrs["keepdim"]
        if other is not None:
            return builder.call(f"{name}imum", (x, other), part=f"{name}imum")
        dims = None if dim is None else (dim,)
        along = {"dim": dims, "keepdim": keepdim}
        values = builder.call(f"a{name}", (x,), along, part=f"a{name}")
        if dim is None:
            return values
        along = {"dim": dim, "keepdim": keepdim}
        return values, builder.call(f"arg{name}", (x,), along, part=f"arg{name}")

    return OpSpec(
        name=name,
        family="reduce",
        rule=Rule.DECOMPOSED,
        roles=("input", "other"),
        targets=(FunctionTarget(function, _bind), MethodTarget(name, _bind)),
        float_kernel=float_kernel,
        lower=lower,
        decompose=decompose,
        march=limits.EXTREMUM,
        flops=input_elements,
        sample=_sample,
        doc=doc,
    )


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 7, 3))
    return Sample((shape, None), {"dim": int(rng.integers(-3, 3)), "keepdim": False})
