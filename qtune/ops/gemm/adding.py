"""What addmm and its kin share: ``beta input + alpha product``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
    Sample,
)

Product = Callable[[DecomposeBuilder, Any, Any], Any]
"""``product(builder, left, right)`` emits the product of both operands."""


def added_product(
    name: str,
    function: Callable[..., Any],
    roles: tuple[str, str],
    product: Product,
    sample: Callable[[np.random.Generator], Sample],
    doc: str,
) -> OpSpec:
    """The entry of one operator; ``roles`` are torch's names of the two factors."""

    def bind(input: Any, *args: Any, **kwargs: Any) -> Bound:
        names = (*roles, "beta", "alpha")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        factors = {key: given.pop(key, 1) for key in ("beta", "alpha")}
        if set(given) != set(roles):
            raise TypeError(f"{name} takes input, {roles[0]} and {roles[1]}, got {sorted(given)}")
        return Bound((input, given[roles[0]], given[roles[1]]), factors)

    def float_kernel(input: Any, left: Any, right: Any, *, beta: Any, alpha: Any) -> Any:
        return function(input, left, right, beta=beta, alpha=alpha)

    def decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
        addend, left, right = bound.tensors
        beta, alpha = bound.attrs["beta"], bound.attrs["alpha"]
        if name == "addmm" and (beta, alpha) == (1, 1) and _is_layer(builder, bound):
            attrs = {"dim0": 0, "dim1": 1}
            weight = builder.call("transpose", (right,), attrs, part="weight")
            return builder.call("linear", (left, weight, addend), part="linear")
        result = product(builder, left, right)
        if beta == 0:
            return _scaled(builder, result, alpha)
        if beta != 1:
            addend = builder.call("mul", (addend, beta), part="beta")
        result = _scaled(builder, result, alpha)
        return builder.call("add", (result, addend), part="add")

    def flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
        left, right = inputs[1], inputs[2]
        if name == "addr":
            return int(left[0] * right[0])
        columns: int = right[-1] if len(right) > 1 else 1
        return int(np.prod(left, dtype=np.int64)) * columns

    twins = (name, f"{name}_")
    return OpSpec(
        name=name,
        family="gemm",
        rule=Rule.DECOMPOSED,
        roles=("input", *roles),
        targets=(FunctionTarget(function, bind), *(MethodTarget(twin, bind) for twin in twins)),
        float_kernel=float_kernel,
        lower=lower_by_parts(decompose),
        decompose=decompose,
        march=limits.NOT_BERNOULLI,
        flops=flops,
        sample=sample,
        doc=doc,
    )


def _is_layer(builder: DecomposeBuilder, bound: Bound) -> bool:
    """Whether it is a linear layer: a constant matrix on the right, a constant vector added."""
    addend, left, right = bound.tensors
    constant = [builder.is_constant(tensor) for tensor in (addend, left, right)]
    width = builder.shape(right)[-1]
    return constant == [True, False, True] and builder.shape(addend) == (width,)


def _scaled(builder: DecomposeBuilder, x: Any, factor: Any) -> Any:
    return x if factor == 1 else builder.call("mul", (x, factor), part="alpha")
