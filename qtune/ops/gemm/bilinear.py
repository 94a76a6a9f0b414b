"""bilinear: ``x1 W x2 + bias`` for each output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.gemm.contraction import Term, contract
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)


def _bind(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Bound:
    return Bound((input1, input2, weight, bias))


def _bind_module(module: nn.Bilinear, input1: Any, input2: Any) -> Bound:
    return Bound((input1, input2, None, None))


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    x1, x2, weight, bias = bound.tensors
    lead = tuple(f".{i}" for i in range(len(builder.shape(x1)) - 1))
    terms = [Term(x1, (*lead, "i")), Term(weight, ("o", "i", "j")), Term(x2, (*lead, "j"))]
    result = contract(builder, terms, (*lead, "o"))
    return result if bias is None else builder.call("add", (result, bias), part="add")


def _flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
    rows = int(np.prod(output[:-1], dtype=np.int64))
    return rows * int(np.prod(inputs[2], dtype=np.int64))


def _sample(rng: np.random.Generator) -> Sample:
    rows, left, right, out = (int(v) for v in rng.integers(1, 6, 4))
    return Sample(((rows, left), (rows, right), (out, left, right), (out,)))


def _float_kernel(x1: Any, x2: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    return F.bilinear(x1, x2, weight, bias)


register(
    OpSpec(
        name="bilinear",
        family="gemm",
        rule=Rule.DECOMPOSED,
        roles=("input1", "input2", "weight", "bias"),
        targets=(
            ModuleTarget(nn.Bilinear, _bind_module, {"weight": "weight", "bias": "bias"}),
            FunctionTarget(F.bilinear, _bind),
        ),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops,
        sample=_sample,
        doc="x1 W x2 + bias: two matmuls and an add; W has one scale",
    )
)
