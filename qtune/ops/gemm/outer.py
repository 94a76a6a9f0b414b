"""outer: every element of one vector times every element of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
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


def _bind(input: Any, vec2: Any) -> Bound:
    return Bound((input, vec2))


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    column = builder.call("unsqueeze", (bound.tensors[0],), {"dim": -1}, part="column")
    return builder.call("mul", (column, bound.tensors[1]), part="mul")


def _flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
    return int(np.prod(output, dtype=np.int64))


def _sample(rng: np.random.Generator) -> Sample:
    rows, columns = (int(v) for v in rng.integers(1, 9, 2))
    return Sample(((rows,), (columns,)))


register(
    OpSpec(
        name="outer",
        family="gemm",
        rule=Rule.DECOMPOSED,
        roles=("input", "vec2"),
        targets=(
            FunctionTarget(torch.outer, _bind),
            FunctionTarget(torch.ger, _bind),
            MethodTarget("outer", _bind),
            MethodTarget("ger", _bind),
        ),
        float_kernel=torch.outer,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops,
        sample=_sample,
        doc="all products of two vectors: unsqueeze, mul",
    )
)
