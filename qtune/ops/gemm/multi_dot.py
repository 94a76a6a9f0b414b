"""multi_dot: a chain of matrix products, from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, FunctionTarget, OpSpec, Rule, Sample


def _bind(tensors: Any) -> Bound:
    return Bound(tuple(tensors))


def _bind_chain(*matrices: Any, out: Any = None) -> Bound:
    if out is not None:
        raise NotImplementedError("chain_matmul with out=; assign the result instead")
    return Bound(matrices)


def _float_kernel(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.linalg.multi_dot(tensors) if len(tensors) > 1 else tensors[0]


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    result = bound.tensors[0]
    for index, other in enumerate(bound.tensors[1:]):
        result = builder.call("matmul", (result, other), part=f"matmul_{index}")
    return result


def _flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
    rows = inputs[0][0] if len(inputs[0]) > 1 else 1
    count = 0
    for shape in inputs[1:]:
        count += rows * int(np.prod(shape, dtype=np.int64))
    return count or rows


def _sample(rng: np.random.Generator) -> Sample:
    a, b, c, d = (int(v) for v in rng.integers(1, 7, 4))
    return Sample(((a, b), (b, c), (c, d)))


register(
    OpSpec(
        name="multi_dot",
        family="gemm",
        rule=Rule.DECOMPOSED,
        roles=("*tensors",),
        targets=(
            FunctionTarget(torch.linalg.multi_dot, _bind),
            FunctionTarget(torch.chain_matmul, _bind_chain),
        ),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops,
        sample=_sample,
        doc="a chain of matrix products",
    )
)
