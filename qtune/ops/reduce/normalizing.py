"""What softmax and log_softmax share: the dimension, the steps up to the sum (numerics.md 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.dtype import qint16
from qtune.ops.elementwise import limits
from qtune.ops.elementwise.binding import input_elements
from qtune.ops.kernel import Attrs, Builder, HbirKernel, LowerCall
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)


@dataclass(frozen=True, slots=True)
class Parts:
    """Nodes of the common steps: ``x - max(x)``, its exponential, the sum of that; all qint16.

    Each power is at most 1 and the largest of a row is 1, so a sum lies in 1..``length``.
    """

    shifted: Any
    powers: Any
    total: Any
    length: float


def exponentials(builder: DecomposeBuilder, bound: Bound) -> Parts:
    """Emit max, sub, exp and sum along the call's dimension."""
    (x,) = bound.tensors
    if not builder.shape(x):
        raise NotImplementedError(
            "a softmax over a tensor without dimensions is a constant and has no integer form; "
            "leave it out, or give it a dimension with reshape(1)"
        )
    dim = dimension(bound.attrs["dim"], len(builder.shape(x)))
    check_dtype(bound.attrs["dtype"], builder.dtype(x))
    along = {"dim": (dim,), "keepdim": True}
    largest = builder.call("amax", (x,), along, part="max")
    shifted = builder.call("sub", (x, largest), part="sub", forced_dtype=qint16)
    powers = builder.call("exp", (shifted,), part="exp", forced_dtype=qint16)
    length = float(builder.shape(x)[dim])
    total = builder.call(
        "sum", (powers,), along, part="sum", forced_dtype=qint16, bounds=(1.0, length)
    )
    return Parts(shifted, powers, total, length)


def inverse(builder: DecomposeBuilder, total: Any, length: float) -> Any:
    """1 / total, where total lies between 1 and ``length``."""
    bounds = (1.0 / length, 1.0)
    return builder.call(
        "reciprocal", (total,), part="reciprocal", forced_dtype=qint16, bounds=bounds
    )


def dimension(dim: int | None, rank: int) -> int:
    """The given dimension, or the one that torch takes where none is given."""
    if dim is not None:
        return dim
    return 0 if rank in (0, 1, 3) else 1


def check_dtype(wanted: Any, has: Any) -> None:
    """Raise ``NotImplementedError`` for a softmax that changes the dtype."""
    if wanted is not None and wanted is not has:
        raise NotImplementedError(
            f"a softmax that changes the dtype ({has} to dtype={wanted}) has no integer form; "
            "leave dtype out and convert its input or result with .to()"
        )


def normalization(
    name: str,
    onnx_op: str,
    function: Callable[..., torch.Tensor],
    decompose: Callable[[DecomposeBuilder, Bound], Any],
    targets: tuple[Callable[..., Any], ...],
    modules: Mapping[type[nn.Module], int | None],
    doc: str,
) -> OpSpec:
    """A softmax-like operator; ``modules`` maps module classes to a fixed dim, if they have one."""

    def bind(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Bound:
        return Bound((input,), {"dim": dim, "dtype": dtype})

    def bind_torch(input: Any, dim: Any = None, dtype: Any = None) -> Bound:
        return Bound((input,), {"dim": dim, "dtype": dtype})

    def bind_module(module: nn.Module, input: Any) -> Bound:
        fixed = next((d for cls, d in modules.items() if isinstance(module, cls)), None)
        return bind(input, getattr(module, "dim", None) if fixed is None else fixed)

    def float_kernel(input: torch.Tensor, *, dim: Any = None, dtype: Any = None) -> torch.Tensor:
        return function(input, dimension(dim, input.dim()), dtype=dtype)

    def lower(b: Builder, call: LowerCall) -> Any:
        check_dtype(call.attrs["dtype"], torch.float32)
        rank = len(call.input_shapes[0] or ())
        return b.add(onnx_op, [call.operands[0]], {"axis": dimension(call.attrs["dim"], rank)})

    def run_float(attrs: Attrs, x: torch.Tensor) -> torch.Tensor:
        return function(x, attrs.get("axis", -1))

    return OpSpec(
        name=name,
        family="reduce",
        rule=Rule.DECOMPOSED,
        roles=("input",),
        targets=(
            *(ModuleTarget(cls, bind_module) for cls in modules),
            FunctionTarget(targets[0], bind),
            *(FunctionTarget(target, bind_torch) for target in targets[1:]),
            MethodTarget(name, bind_torch),
        ),
        float_kernel=float_kernel,
        lower=lower,
        decompose=decompose,
        kernels=(HbirKernel(onnx_op, run_float=run_float),),
        march=limits.NOT_BERNOULLI,
        flops=input_elements,
        sample=_sample,
        doc=doc,
    )


def _sample(rng: np.random.Generator) -> Sample:
    shape = tuple(int(v) for v in rng.integers(1, 9, 3))
    return Sample((shape,), {"dim": int(rng.integers(-3, 3)), "dtype": None})
