"""tensordot: a sum of products over several dimensions, as one matmul."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.gemm.contraction import Term, contract
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, FunctionTarget, OpSpec, Rule, Sample


def _bind(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Bound:
    if out is not None:
        raise NotImplementedError("tensordot with out=; assign the result instead")
    if isinstance(dims, int):
        return Bound((a, b), {"dims": dims})
    if not isinstance(dims, list | tuple):
        raise NotImplementedError("tensordot with computed dims; pass numbers")
    return Bound((a, b), {"dims": tuple(tuple(side) for side in dims)})


def _float_kernel(a: torch.Tensor, b: torch.Tensor, *, dims: Any) -> torch.Tensor:
    result: torch.Tensor = torch.tensordot(a, b, dims)
    return result


def _summed(dims: Any, ranks: Sequence[int]) -> tuple[list[int], list[int]]:
    """The summed dimensions of both operands, counted from the front."""
    if isinstance(dims, int):
        return list(range(ranks[0] - dims, ranks[0])), list(range(dims))
    left, right = ([d % rank for d in side] for side, rank in zip(dims, ranks, strict=True))
    return left, right


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    a, b = bound.tensors
    ranks = [len(builder.shape(t)) for t in (a, b)]
    left = [f"a{i}" for i in range(ranks[0])]
    right = [f"b{i}" for i in range(ranks[1])]
    pairs = list(zip(*_summed(bound.attrs["dims"], ranks), strict=True))
    for i, j in pairs:
        right[j] = left[i]
    gone = {left[i] for i, _ in pairs}
    output = tuple(label for label in (*left, *right) if label not in gone)
    return contract(builder, [Term(a, tuple(left)), Term(b, tuple(right))], output)


def _flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
    left, _ = _summed(attrs["dims"], [len(shape) for shape in inputs])
    inner = int(np.prod([inputs[0][i] for i in left], dtype=np.int64))
    return int(np.prod(output, dtype=np.int64)) * inner


def _sample(rng: np.random.Generator) -> Sample:
    a, b, c, d = (int(v) for v in rng.integers(1, 6, 4))
    if rng.integers(2):
        return Sample(((a, b, c), (b, c, d)), {"dims": 2})
    return Sample(((a, b, c), (d, c, b)), {"dims": ((1, -1), (2, 1))})


register(
    OpSpec(
        name="tensordot",
        family="gemm",
        rule=Rule.DECOMPOSED,
        roles=("input", "other"),
        targets=(FunctionTarget(torch.tensordot, _bind),),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops,
        sample=_sample,
        doc="sum of products over several dimensions: permute, flatten, matmul",
    )
)
