"""inner: products summed over the last dimension of both operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.gemm.contraction import Term, contract
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    MethodTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input: Any, other: Any) -> Bound:
    return Bound((input, other))


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    ranks = [len(builder.shape(tensor)) for tensor in bound.tensors]
    if 0 in ranks:
        return builder.call("mul", bound.tensors, part="mul")
    left, right = (
        tuple(f"{side}{i}" for i in range(rank - 1)) for side, rank in zip("ab", ranks, strict=True)
    )
    terms = zip(bound.tensors, (left, right), strict=True)
    return contract(builder, [Term(t, (*labels, "k")) for t, labels in terms], (*left, *right))


def _flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
    return int(np.prod(output, dtype=np.int64)) * (inputs[0][-1] if inputs[0] else 1)


def _sample(rng: np.random.Generator) -> Sample:
    a, b, c = (int(v) for v in rng.integers(1, 6, 3))
    return Sample((((a, c), (c,))[int(rng.integers(2))], (b, c)))


register(
    OpSpec(
        name="inner",
        family="gemm",
        rule=Rule.DECOMPOSED,
        roles=("input", "other"),
        targets=(FunctionTarget(torch.inner, _bind), MethodTarget("inner", _bind)),
        float_kernel=torch.inner,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops,
        sample=_sample,
        doc="products summed over the last dimension of both operands: matmul",
    )
)
